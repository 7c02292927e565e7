#include "server/engine/cpu_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <fstream>

#include "server/engine/handover.h"

namespace fuseblock {
namespace {

// About 20 us on current cores: longer than the gap between two kernels of a block, shorter than a
// time slice.
constexpr int kSpins = 1000;
constexpr uint64_t kIndexMask = 0xFFFFFFFFu;
constexpr uint64_t kClosed = kIndexMask;
constexpr int64_t kTasksMax = int64_t{1} << 31;

// Returns when `word` no longer holds `old`.
void AwaitChange(const std::atomic<int>& word, int old) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    Pause();
  }
  word.wait(old, std::memory_order_acquire);
}

}  // namespace

int UsableCores(const char* cpu_max_file) {
  int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // Of a process that may not run everywhere.
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = std::min(cores, CPU_COUNT(&set));
  // "200000 100000": microseconds of running in so many of time; "max 100000": no quota. More
  // threads than that would all be stopped together for the rest of each period.
  std::ifstream file(cpu_max_file);
  double quota = 0, period = 0;
  if (file >> quota >> period && quota > 0 && period > 0) {
    cores = std::clamp(static_cast<int>(quota / period), 1, cores);
  }
  return cores;
}

CpuTeam::CpuTeam(int threads) : claim_(kClosed) {
  if (threads <= 0) threads = UsableCores();
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
}

CpuTeam::~CpuTeam() {
  stop_.store(true, std::memory_order_relaxed);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void CpuTeam::Run(int64_t tasks, Task task) {
  const bool alone = tasks <= 1 || workers_.empty() || tasks >= kTasksMax;
  if (alone || busy_.exchange(true, std::memory_order_acquire)) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  // The last job's claims are closed by now, and a new number keeps them so while the fields
  // change.
  const uint64_t number = (claim_.load(std::memory_order_relaxed) >> 32) + 1;
  claim_.store((number << 32) | kClosed, std::memory_order_relaxed);
  task_.store(&task, std::memory_order_release);
  tasks_.store(tasks, std::memory_order_release);
  left_.store(tasks, std::memory_order_relaxed);
  claim_.store((number + 1) << 32, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  const int64_t helpers = std::min<int64_t>(tasks - 1, static_cast<int64_t>(workers_.size()));
  for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();

  AddDone(RunTasks());
  for (;;) {
    const int finished = finished_.load(std::memory_order_acquire);
    if (left_.load(std::memory_order_acquire) == 0) break;
    AwaitChange(finished_, finished);
  }
  busy_.store(false, std::memory_order_release);
}

int64_t CpuTeam::RunTasks() {
  int64_t ran = 0;
  uint64_t claim = claim_.load(std::memory_order_acquire);
  for (;;) {
    const Task* task = task_.load(std::memory_order_acquire);
    const int64_t tasks = tasks_.load(std::memory_order_acquire);
    const int64_t index = static_cast<int64_t>(claim & kIndexMask);
    if (index >= tasks) return ran;
    // Fails, and reads the word anew, when somebody else claimed the task, or when the job is over
    // and what was read above may be the next one's.
    if (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel)) continue;
    (*task)(index);
    ++ran;
    claim = claim_.load(std::memory_order_acquire);
  }
}

void CpuTeam::AddDone(int64_t count) {
  if (count == 0) return;
  if (left_.fetch_sub(count, std::memory_order_acq_rel) == count) {
    finished_.fetch_add(1, std::memory_order_release);
    finished_.notify_one();
  }
}

void CpuTeam::Work() {
  pthread_setname_np(pthread_self(), "fb-cpu");
  int seen = wake_.load(std::memory_order_acquire);
  while (!stop_.load(std::memory_order_relaxed)) {
    AddDone(RunTasks());
    AwaitChange(wake_, seen);
    seen = wake_.load(std::memory_order_acquire);
  }
}

ParallelFor CpuTeam::parallel_for() {
  return {threads(), this, [](void* pool, int64_t tasks, absl::FunctionRef<void(int64_t)> task) {
            static_cast<CpuTeam*>(pool)->Run(tasks, task);
          }};
}

}  // namespace fuseblock
