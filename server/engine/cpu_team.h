// A small team of threads behind ParallelFor: the CPU's counterpart of a stream.
//
// Tasks are claimed one by one from a shared counter and the caller takes part, so a thread that
// the system has descheduled holds up at most the one task that it has begun; nobody waits for it
// at a barrier. Idle threads spin for some microseconds, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/base/context.h"

namespace fuseblock {

// Cores that this process may use: those of its affinity mask, and no more than its control group's
// quota
// (`cpu_max_file`, control groups version 2) pays for. At least 1.
int UsableCores(const char* cpu_max_file = "/sys/fs/cgroup/cpu.max");

class CpuTeam {
 public:
  // `threads` with the caller's own, which is not made; 0: UsableCores().
  explicit CpuTeam(int threads = 0);
  // No Run may be under way.
  ~CpuTeam();
  CpuTeam(const CpuTeam&) = delete;
  CpuTeam& operator=(const CpuTeam&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(0) .. task(tasks - 1), each once, in any order, on any of the team's threads, and
  // returns when all have ended; what they wrote is visible to the caller. Tasks must not throw.
  // While another thread's Run (or an outer one) is under way the caller does its tasks alone.
  void Run(int64_t tasks, absl::FunctionRef<void(int64_t)> task);

  // The team as kernels take it. The team must outlive it.
  ParallelFor parallel_for();

 private:
  using Task = absl::FunctionRef<void(int64_t)>;

  void Work();
  // Claims and runs tasks of the current job until none is left; returns how many it ran.
  int64_t RunTasks();
  void AddDone(int64_t count);

  // The job. `claim_` is its number (upper half) and the next task (lower half) in one word, so
  // that a thread that comes late with an old number can claim nothing of a newer job.
  std::atomic<uint64_t> claim_;
  std::atomic<const Task*> task_{nullptr};
  std::atomic<int64_t> tasks_{0};
  alignas(64) std::atomic<int64_t> left_{0};
  alignas(64) std::atomic<int> wake_{0};  // changes with every job; threads sleep on it
  alignas(64) std::atomic<int> finished_{
      0};  // changes when a job's last task ends; the caller sleeps
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace fuseblock
