// The engine's side of devices and lanes: making them, sizing them, feeding them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/answer.h"
#include "server/engine/caller_lane.h"
#include "server/engine/cpu_team.h"
#include "server/engine/engine_impl.h"
#include "server/engine/worker.h"
#include "server/observe/log.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// Where the worker of a lane that never came back goes: its thread may still wake up in it.
void LeaveBehind(std::unique_ptr<LaneWorker> worker) {
  static std::mutex mutex;
  static auto* left = new std::vector<std::unique_ptr<LaneWorker>>();
  std::lock_guard<std::mutex> lock(mutex);
  left->push_back(std::move(worker));
}

}  // namespace

Engine::Impl::Impl(const EngineOptions& options_in, Metrics& metrics_in)
    : options(options_in),
      clock(options_in.clock != nullptr ? *options_in.clock : MonotonicClock()),
      metrics(metrics_in),
      probe(options_in.devices),
      admission(std::make_shared<Admission>(
          AdmissionLimits{{options_in.queue_tokens_max, options_in.queue_bytes_max,
                           options_in.queue_requests_max},
                          options_in.request_tokens_max,
                          options_in.tenant_quota,
                          options_in.tenant_quotas},
          [&metrics_in, last = int64_t{0}, requests = metrics_in.Memory({}, MemoryPool::kRequests)](
              const AdmissionUse& use) mutable {
            metrics_in.SetInflight(use.requests);
            requests->AddUsed(use.bytes - last);
            last = use.bytes;
          })),
      device_list(options_in.devices),
      scheduler(admission) {
  metrics.Memory({}, MemoryPool::kRequests)->AddReserved(options.queue_bytes_max);
}

Engine::Impl::~Impl() {
  Entries queued;
  {
    std::lock_guard<std::mutex> lock(mutex);
    admission->Close();
    queued = scheduler.TakeAll([](const BatchQueue&) { return true; });
    UpdateQueueGaugesLocked();
  }
  Refuse(std::move(queued), Reason::kDraining, "the server stopped before this request's turn",
         absl::Seconds(1));
  // The timer after the GPUs' workers, for a lane that hangs; the CPU's workers last, because until
  // then they may have to take over.
  StopWorkers(DeviceType::kCpu, false);
  StopTimer();
  StopWorkers(DeviceType::kCpu, true);
  for (auto& state : devices) {
    for (auto& worker : state->workers) {
      if (worker->orphaned()) LeaveBehind(std::move(worker));
    }
  }
  admission->Detach();
  metrics.Memory({}, MemoryPool::kRequests)->AddReserved(-options.queue_bytes_max);
}

void Engine::Impl::StopTimer() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    timer_stops = true;
    timer_wake.notify_all();
  }
  if (timer.joinable()) timer.join();
}

void Engine::Impl::StopWorkers(DeviceType type, bool same_type) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& state : devices) {
      if ((state->device.type == type) != same_type) continue;
      state->stopping = true;
      state->WakeAll();
    }
  }
  for (auto& state : devices) {
    if ((state->device.type == type) != same_type) continue;
    for (auto& worker : state->workers) worker->Join();
  }
}

absl::Status Engine::Impl::MakeLanes() {
  const LaneFactory make = options.make_lane ? options.make_lane : LaneFactory(MakeLane);
  const absl::Duration spin_max =
      options.spin_max.value_or(SpinMaxFor(UsableCores(), GpuCount(device_list)));
  for (size_t i = 0; i < device_list.size(); ++i) {
    // On the CPU callers run short batches themselves, which costs less still.
    const bool spins = device_list[i].type != DeviceType::kCpu;
    devices.push_back(std::make_unique<DeviceState>(spins ? spin_max : absl::ZeroDuration()));
    DeviceState& state = *devices.back();
    state.device = device_list[i];
    healthy.push_back(true);
    // One lane has all the cores: a second would only take them away from it.
    const int lanes = state.device.type == DeviceType::kCpu ? 1 : options.lanes_per_device;
    for (int n = 0; n < lanes; ++n) {
      absl::StatusOr<std::unique_ptr<Lane>> lane = make(state.device, options.cpu_threads);
      if (!lane.ok()) {
        if (!CanFallBackFrom(i)) return lane.status();
        // Without lanes there is nothing to probe.
        TakeOutOfService(i, FallbackCause::kDeviceLost, Text(lane.status()));
        break;
      }
      state.workers.push_back(
          std::make_unique<LaneWorker>(*this, i, state.workers.size(), *std::move(lane)));
    }
    const int callers = state.device.type == DeviceType::kCpu ? options.caller_lanes : 0;
    for (int n = 0; n < callers; ++n) {
      const size_t index = state.workers.size() + state.caller_lanes.size();
      auto lane = CallerLane::Create(*this, i, index, make);
      if (!lane.ok()) return lane.status();
      state.free_caller_lanes.push_back(lane->get());
      state.caller_lanes.push_back(*std::move(lane));
    }
    state.bytes_max = DeviceBytesMax(state.device);
    metrics.SetDeviceHealthy(state.device, healthy[i]);
  }
  held_weights = std::make_shared<HeldWeights>(devices.size());
  return absl::OkStatus();
}

void Engine::Impl::Start() {
  for (auto& state : devices) {
    for (auto& worker : state->workers) worker->Start();
  }
  timer = std::thread([this] { RunTimer(); });
}

Serving Engine::Impl::WhoServesLocked(const EngineBlock& block) const {
  return WhoServes(device_list, block.has, healthy, options.fallback);
}

bool Engine::Impl::CanServe(const ServedBlock& block) const {
  if (block.engine == nullptr) return false;
  std::lock_guard<std::mutex> lock(mutex);
  return WhoServesLocked(*block.engine).any;
}

std::vector<DeviceStatus> Engine::Impl::Devices() const {
  std::vector<DeviceStatus> out;
  for (const auto& state : devices) {
    DeviceStatus status;
    status.device = state->device;
    for (const auto& worker : state->workers) {
      status.staging_bytes += worker->staging_bytes();
      status.workspace_bytes += worker->workspace_bytes();
      status.lanes.push_back(worker->status());
    }
    for (const auto& lane : state->caller_lanes) {
      status.staging_bytes += lane->staging_bytes();
      status.workspace_bytes += lane->workspace_bytes();
      status.lanes.push_back(lane->status());
    }
    std::lock_guard<std::mutex> lock(mutex);
    const DeviceHealthMachine& health = state->health;
    status.health = health.state();
    status.reason = health.reason();
    status.stuck_lanes = health.stuck_lanes();
    status.until_probe = health.next_probe() - clock.Now();
    out.push_back(std::move(status));
  }
  return out;
}

// The next batch of what this device serves; false when there is none. *expired is the caller's to
// refuse once the lock is free.
bool Engine::Impl::TakeLocked(size_t device, LaneWorker& worker, Batch* batch, Entries* expired) {
  const auto mine = [&](const BatchQueue& waiting) {
    const EngineBlock& block = *waiting.block();
    if (!block.has[device]) return false;
    const Serving serving = WhoServesLocked(block);
    return serving.any && serving.type == devices[device]->device.type;
  };
  const absl::Time now = clock.Now();
  const auto cost = [&](const BatchQueue& taken) -> const CostModel& {
    return taken.block()->costs[device];
  };
  scheduler.Take(mine, cost, now, &batch->parts, expired);
  UpdateQueueGaugesLocked();
  if (batch->empty()) return false;
  int64_t tokens = 0;
  for (const Part& part : batch->parts) tokens += part.rows;
  const EngineBlock& block = *batch->parts.front().entry->queue->block();
  worker.busy_until = now + block.costs[device].Predict(tokens);
  return true;
}

// Without waiting; kLeave when there is nothing to do.
Engine::Impl::Work Engine::Impl::NextLocked(size_t device, LaneWorker& worker, Entries* expired) {
  const DeviceState& state = *devices[device];
  Work work;
  work.patience = Patience(state.device, absl::ZeroDuration());
  if (state.device.type == DeviceType::kCpu && !takeovers.empty()) {
    work.kind = Work::kTakeOver;
    work.takeover = std::move(takeovers.front());
    takeovers.pop_front();
    Batch& batch = work.takeover->batch;
    scheduler.ExpireTaken(batch.parts, clock.Now(), expired);
    work.takeover->left_out = batch.KeepOnly(scheduler.StillWanted(batch.parts));
    UpdateQueueGaugesLocked();
  } else if (worker.probe_due != 0) {
    work.kind = Work::kProbe;
    work.probe_round = std::exchange(worker.probe_due, 0);
  } else if (worker.task != nullptr && !worker.task->started) {
    work.kind = Work::kTask;
    work.task = worker.task;
    work.task->started = true;
  } else if (healthy[device] && !scheduler.queue().empty() &&
             TakeLocked(device, worker, &work.batch, expired)) {
    work.kind = Work::kBatch;
    work.patience = Patience(state.device, worker.busy_until - clock.Now());
  }
  // A caller may have called this worker while another one sleeps on.
  if (work.kind != Work::kLeave) WakeIdleWorkersLocked();
  return work;
}

Engine::Impl::Work Engine::Impl::AwaitWork(size_t device, LaneWorker& worker) {
  DeviceState& state = *devices[device];
  std::unique_lock<std::mutex> lock(mutex);
  worker.busy_until = absl::InfinitePast();
  for (;;) {
    // Nothing is taken before it can run: it could expire meanwhile, or go to another lane.
    if (worker.lends > 0 && !state.stopping) {
      staging_returned.wait(lock);
      continue;
    }
    Work work;
    Entries expired;
    if (worker.lends == 0) work = NextLocked(device, worker, &expired);
    const bool some_expired = !expired.empty();
    if (some_expired) {
      lock.unlock();
      Refuse(std::move(expired), Reason::kExpired,
             "the deadline passed while the request waited, or came too near for an answer");
      lock.lock();
    }
    if (work.kind != Work::kLeave) return work;
    if (some_expired) continue;  // while the lock was free, something may have come
    if (state.stopping) return work;
    state.Rest(lock);
  }
}

void Engine::Impl::StagingReturned(LaneWorker& from) {
  std::lock_guard<std::mutex> lock(mutex);
  --from.lends;
  staging_returned.notify_all();
}

absl::Status Engine::Impl::RunOnLane(size_t device, LaneWorker& worker, std::string what,
                                     std::function<absl::Status(LaneWorker&)> run) {
  const auto task = std::make_shared<Task>();
  task->what = std::move(what);
  task->run = std::move(run);
  std::unique_lock<std::mutex> lock(mutex);
  if (worker.given_up()) return absl::OkStatus();
  worker.task = task;
  devices[device]->WakeAll();
  task_over.wait(lock, [&] { return task->over; });
  return task->status;
}

void Engine::Impl::TaskDone(size_t device, LaneWorker& worker, absl::Status status) {
  if (absl::IsUnavailable(status)) {
    TakeOutOfService(device, FallbackCause::kDeviceLost, Text(status));
  }
  std::lock_guard<std::mutex> lock(mutex);
  EndTaskLocked(worker, std::move(status));
}

void Engine::Impl::EndTaskLocked(LaneWorker& worker, absl::Status status) {
  worker.task->status = std::move(status);
  worker.task->over = true;
  worker.task.reset();
  task_over.notify_all();
}

absl::Duration Engine::Impl::Patience(Device device, absl::Duration predicted) const {
  // A CPU that is slow can't be told from one that hangs, and nobody would take over from it.
  if (device.type == DeviceType::kCpu) return absl::InfiniteDuration();
  return std::max(options.watchdog, predicted * 10);
}

Engine::Impl::DeviceState::DeviceState(absl::Duration spin_max) : spin(spin_max) {}
Engine::Impl::DeviceState::~DeviceState() = default;

void Engine::Impl::DeviceState::Rest(std::unique_lock<std::mutex>& lock) {
  const absl::Time began = MonotonicClock().Now();
  const uint32_t calls_before = calls;
  if (spinning == 0 && spin.Worthwhile()) {
    ++spinning;
    const absl::Time end = began + spin.spin_max();
    // A signal may be late, of a call that was seen before.
    while (calls == calls_before && MonotonicClock().Now() < end) {
      const uint32_t seen = signal;
      lock.unlock();
      SpinWhile(signal, seen, end - MonotonicClock().Now());
      lock.lock();
    }
    --spinning;
    if (calls == calls_before) spin.Missed();
  }
  if (calls == calls_before) {
    ++asleep;
    work.wait(lock);
    --asleep;
  }
  spin.Waited(MonotonicClock().Now() - began);
}

void Engine::Impl::Conclude(Batch& batch, PartResults results, CallerLane* lane) {
  Answered(AnswerEnded(batch, Finish(batch, std::move(results))), lane);
}

Entries Engine::Impl::Finish(const Batch& batch, PartResults results) {
  Entries ended;
  bool started_over = false;
  const absl::Time now = clock.Now();
  std::lock_guard<std::mutex> lock(mutex);
  const int64_t waiting = scheduler.queue().tokens();
  for (size_t p = 0; p < batch.parts.size(); ++p) {
    const Part& part = batch.parts[p];
    const int round = part.entry->round;
    if (scheduler.Finish(part, std::move(results[p]), now)) ended.push_back(part.entry);
    started_over = started_over || part.entry->round != round;
  }
  if (started_over) {
    timer_wake.notify_one();
    WakeIdleWorkersLocked();
  }
  // A request that failed leaves with the chunks that were still to come.
  if (scheduler.queue().tokens() != waiting) UpdateQueueGaugesLocked();
  return ended;
}

void Engine::Impl::WakeIdleWorkersLocked() {
  for (auto& state : devices) {
    if (!scheduler.queue().empty()) state->WakeOne();
  }
}

}  // namespace fuseblock
