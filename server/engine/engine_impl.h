// The engine's inside: one lock around the queue and the devices' states, lane workers that ask for
// batches, a timer that ends what has expired and gives up lanes that hang. Private to this folder.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/engine/admission.h"
#include "server/engine/batch.h"
#include "server/engine/clock.h"
#include "server/engine/device_health.h"
#include "server/engine/devices.h"
#include "server/engine/engine.h"
#include "server/engine/handover.h"
#include "server/engine/lane.h"
#include "server/engine/lane_probe.h"
#include "server/engine/memory_plan.h"
#include "server/engine/scheduler.h"
#include "server/observe/metrics.h"

namespace fuseblock {

class CallerLane;
class LaneWorker;

inline std::string Text(const absl::Status& status) { return std::string(status.message()); }

struct Engine::Impl {
  // A batch that its own device failed on, for a CPU lane to run and answer.
  struct TakeOver {
    Batch batch;
    FallbackCause cause;
    LaneWorker* from;  // the inputs lie in its staging, which is lent until they have been read
    Parts left_out;    // of the batch: ended since
  };

  // What the preparation of a block needs a lane for: done by the lane's own worker between two
  // batches, so that a device that hangs in it is noticed like one that hangs in a batch.
  struct Task {
    std::string what;  // "capturing m.layers.0.mlp", for people
    // Owns what it uses: a lane that hangs keeps it.
    std::function<absl::Status(LaneWorker&)> run;
    // Guarded by the engine's lock.
    bool started = false, over = false;
    absl::Status status;
  };

  // What a worker is to do next.
  struct Work {
    enum Kind { kLeave, kBatch, kTakeOver, kProbe, kTask } kind = kLeave;
    Batch batch;
    std::unique_ptr<TakeOver> takeover;
    std::shared_ptr<Task> task;
    int64_t probe_round = 0;
    absl::Duration patience;  // the lane hangs if it takes longer than that
  };

  struct DeviceState {
    Device device;
    DeviceHealthMachine health;
    LaneBytes needed;  // of each lane, by the blocks that were prepared
    std::vector<std::unique_ptr<LaneWorker>> workers;
    // The CPU's, for callers that run short batches themselves. The last one used goes first.
    std::vector<std::unique_ptr<CallerLane>> caller_lanes;
    std::vector<CallerLane*> free_caller_lanes;
    int64_t bytes_max = 0;  // of the device's memory; 0: no limit
    bool stopping = false;  // the workers leave when there is nothing to do
    // Workers without work: asleep on `work`, or one that looks out for `signal` to change.
    int asleep = 0;
    int spinning = 0;
    uint32_t calls = 0;  // how often `signal` has been changed, or is about to be
    SpinPolicy spin;
    std::condition_variable work;
    std::atomic<uint32_t> signal{0};

    explicit DeviceState(absl::Duration spin_max);
    ~DeviceState();
    // Something has come for these workers; the engine's lock is held.
    void WakeOne() {
      if (spinning > 0) {
        ++calls;
        ++signal;
      } else if (asleep > 0) {
        work.notify_one();
      }
    }
    void WakeAll() {
      ++calls;
      ++signal;
      work.notify_all();
    }
    // Waits until something may have come for one of them; the lock is `lock`.
    void Rest(std::unique_lock<std::mutex>& lock);
  };

  Impl(const EngineOptions& options_in, Metrics& metrics_in);
  ~Impl();

  absl::Status MakeLanes();
  void Start();

  absl::Status Prepare(const ServedBlock& block, const Budget& budget, absl::Duration measure_max);
  RequestId Submit(Request request);
  void Cancel(RequestId id);
  bool Drain(absl::Time deadline);
  bool HasStuckLane() const;
  bool CanServe(const ServedBlock& block) const;
  std::vector<DeviceStatus> Devices() const;
  std::vector<DeviceMemory> Memory() const;
  void LogMemory() const;
  LoadStatus Load(size_t busiest_max) const;

  // For the workers of that device: waits for work.
  Work AwaitWork(size_t device, LaneWorker& worker);
  // The worker has run its task.
  void TaskDone(size_t device, LaneWorker& worker, absl::Status status);
  // The inputs of a batch that was taken over from that worker have been read.
  void StagingReturned(LaneWorker& from);
  // A batch came back from its lane with the right results, after that long.
  void Succeeded(const Batch& batch, size_t device, absl::Duration took);
  // Counts a batch that its block's preferred device should have run.
  void CountIfFallback(const Batch& batch, size_t device) const;
  // A batch failed on its lane: what that means for the device, and for the batch. True when the
  // CPU has taken it over; else *status becomes what the clients are told.
  bool Failed(size_t device, LaneWorker& worker, Batch& batch, absl::Status* status);
  void Probed(size_t device, int64_t round, const absl::Status& status);
  // A lane that was given up has come back.
  void CameBack(size_t device);
  LaneBytes NeededOn(size_t device) const;
  // Answers all of a batch with an error.
  void Fail(Batch& batch, const absl::Status& status);
  // A lane is done with the batch; `results` by part. Answers the requests that have ended with it
  // and drops the batch. A caller's lane is others' from then on.
  void Conclude(Batch& batch, PartResults results, CallerLane* lane = nullptr);

  const EngineOptions options;
  Clock& clock;
  Metrics& metrics;
  const LaneProbe probe;
  const std::shared_ptr<Admission> admission;

  std::shared_ptr<HeldWeights> held_weights;
  std::mutex prepare_mutex;  // one block at a time is prepared; taken before `mutex`
  mutable std::mutex mutex;
  // Guarded by `mutex` from here on; the shape of `devices` is constant once Start was called.
  std::vector<Device> device_list;
  std::vector<std::unique_ptr<DeviceState>> devices;
  std::vector<bool> healthy;  // by device
  Scheduler scheduler;
  int64_t unanswered = 0;  // admitted, and `done` has not returned
  std::condition_variable all_answered;
  std::deque<std::unique_ptr<TakeOver>> takeovers;
  std::condition_variable staging_returned, task_over;
  bool timer_stops = false;
  std::condition_variable timer_wake;
  std::thread timer;

 private:
  int64_t DeviceBytesMax(Device device) const;
  // As it is, or with one more block.
  std::vector<DeviceMemory> PlanMemory(const EngineBlock* more) const;
  // On every lane of a device that has the block.
  absl::Status PrepareOn(size_t device, const std::shared_ptr<EngineBlock>& preparing,
                         absl::Duration measure_max);
  absl::Status ReserveOn(size_t device, const LaneBytes& bytes);
  absl::Status CaptureOn(size_t device, LaneWorker& worker,
                         const std::shared_ptr<EngineBlock>& preparing);
  bool Prepared(size_t device, const LaneWorker& worker, const EngineBlock& block) const;
  absl::Status MeasureOn(size_t device, const std::shared_ptr<EngineBlock>& preparing,
                         absl::Duration measure_max);
  // Returns when the worker has run it, or has been given up: UNAVAILABLE if it was in this that it
  // hung; OK, without having run it, if it hung before.
  absl::Status RunOnLane(size_t device, LaneWorker& worker, std::string what,
                         std::function<absl::Status(LaneWorker&)> run);
  void EndTaskLocked(LaneWorker& worker, absl::Status status);
  Serving WhoServesLocked(const EngineBlock& block) const;
  Scheduler::Capacity CapacityLocked(const EngineBlock& block, const Serving& serving,
                                     absl::Time now) const;
  // Who runs what was just admitted: a thread to wake, the caller on a lane of its own, or neither
  // when one that looks out for work was told, or all are busy: they look at the queue before they
  // rest.
  struct Runner {
    std::condition_variable* wake = nullptr;
    std::atomic<uint32_t>* signal = nullptr;  // of the worker that looks out
    CallerLane* caller = nullptr;
    Part part;  // the caller's
  };
  Runner RunnerLocked(const EngineBlock& block, const Serving& serving, int64_t tokens);
  void QueueLocked(const EntryPtr& entry);
  Entries Finish(const Batch& batch, PartResults results);
  void Answered(int64_t requests, CallerLane* lane);
  absl::Duration Patience(Device device, absl::Duration predicted) const;
  Work NextLocked(size_t device, LaneWorker& worker, Entries* expired);
  bool TakeLocked(size_t device, LaneWorker& worker, Batch* batch, Entries* expired);
  Entries TakeExpiredLocked(absl::Time now);
  void UpdateQueueGaugesLocked();
  void WakeIdleWorkersLocked();
  absl::StatusOr<RequestId> Enqueue(Request& request, EngineBlock& block, Runner* runner);
  // Answers requests that have ended before their time, outside the lock.
  void Refuse(Entries refused, Reason reason, std::string_view message,
              absl::Duration retry_after = absl::ZeroDuration());
  bool CanFallBackFrom(size_t device) const;
  bool HandOver(size_t device, LaneWorker& worker, FallbackCause cause, Batch& batch);
  void TakeOutOfService(size_t device, FallbackCause cause, const std::string& reason);
  // Of the GPUs' lanes those that should have come back by then. Their batches go to the CPU, or
  // end with that error if one is given.
  void GiveUpLanes(absl::Time overdue_by, const absl::Status& error);
  void StartProbesLocked(absl::Time now);
  absl::Time NextCheckLocked(absl::Time now) const;
  void RunTimer();
  void StopTimer();
  void StopWorkers(DeviceType type, bool same_type);
};

// What clients are told of a batch that failed on a device which nobody takes over from; logs it.
absl::Status FailedForGood(Device device, const Batch& batch, const absl::Status& status);

}  // namespace fuseblock
