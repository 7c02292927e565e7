// The engine's side of devices that fail: what becomes of the batch, of the queue and of the
// device, lanes that hang, and recovery by probe.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/engine_impl.h"
#include "server/engine/worker.h"
#include "server/observe/log.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// What a failure on a GPU means for the device and for the batch.
struct Failure {
  bool counts = false;    // against the device
  bool may_move = false;  // the CPU may do better
  FallbackCause cause = FallbackCause::kLaunchFailed;
};

Failure Judge(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
      return {true, true, FallbackCause::kDeviceLost};
    case absl::StatusCode::kResourceExhausted:
      return {true, true, FallbackCause::kOutOfMemory};
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return {false, false, FallbackCause::kLaunchFailed};  // ours: it would fail anywhere
    case absl::StatusCode::kUnimplemented:
      return {false, true, FallbackCause::kLaunchFailed};
    default:
      return {true, true, FallbackCause::kLaunchFailed};
  }
}

absl::Status LostError(Device device, std::string_view reason) {
  return MakeError(Reason::kDeviceLost,
                   absl::StrCat(DeviceName(device), " was lost: ", std::string(reason)),
                   absl::Seconds(1));
}

}  // namespace

std::string_view Name(DeviceHealth health) {
  constexpr std::string_view kNames[] = {"healthy", "quarantined", "probing", "lost"};
  return kNames[static_cast<int>(health)];
}

void Engine::Impl::Succeeded(const Batch& batch, size_t device, absl::Duration took) {
  EngineBlock& block = *batch.block;
  const absl::Time now = clock.Now();
  std::lock_guard<std::mutex> lock(mutex);
  devices[device]->health.Succeeded();
  block.costs[device].Observe(batch.run.rows, took, now);
}

void Engine::Impl::CountIfFallback(const Batch& batch, size_t device) const {
  // Of another type than the preferred one, which must have been lost before.
  if (device_list[batch.block->PreferredDevice()].type == device_list[device].type) return;
  batch.block->metrics->CountFallback(FallbackCause::kDeviceLost, batch.requests());
}

absl::Status FailedForGood(Device device, const Batch& batch, const absl::Status& status) {
  Log(LogLevel::kError, "batch_failed", Text(status),
      {{"block", batch.block->name},
       {"device", DeviceName(device)},
       {"requests", batch.parts.size()},
       {"tokens", batch.run.rows}});
  if (absl::IsResourceExhausted(status)) return MakeError(Reason::kMemory, Text(status));
  return MakeError(Reason::kInternal,
                   absl::StrCat("running the batch on ", DeviceName(device), ": ", Text(status)));
}

bool Engine::Impl::Failed(size_t device, LaneWorker& worker, Batch& batch, absl::Status* status) {
  const Device failed = device_list[device];
  const Failure judged = Judge(status->code());
  if (failed.type == DeviceType::kCpu || !judged.may_move) {
    *status = FailedForGood(failed, batch, *status);
    return false;
  }
  if (judged.counts) TakeOutOfService(device, judged.cause, Text(*status));
  if (HandOver(device, worker, judged.cause, batch)) return true;
  *status = absl::IsResourceExhausted(*status)
                ? MakeError(Reason::kMemory, Text(*status), absl::Milliseconds(100))
                : LostError(failed, Text(*status));
  return false;
}

bool Engine::Impl::CanFallBackFrom(size_t device) const {
  return options.fallback == FallbackPolicy::kCpu && device_list[device].type != DeviceType::kCpu &&
         std::find(device_list.begin(), device_list.end(), Device{}) != device_list.end();
}

bool Engine::Impl::HandOver(size_t device, LaneWorker& worker, FallbackCause cause, Batch& batch) {
  const auto cpu = std::find(device_list.begin(), device_list.end(), Device{});
  if (!CanFallBackFrom(device) || !batch.block->has[cpu - device_list.begin()]) return false;
  auto takeover = std::make_unique<TakeOver>(TakeOver{std::move(batch), cause, &worker, {}});
  std::lock_guard<std::mutex> lock(mutex);
  ++worker.lends;
  timer_wake.notify_one();  // some of it may expire before the CPU takes it
  takeovers.push_back(std::move(takeover));
  devices[cpu - device_list.begin()]->WakeAll();
  return true;
}

void Engine::Impl::Fail(Batch& batch, const absl::Status& status) {
  PartResults results(batch.parts.size());
  for (size_t p = 0; p < results.size(); ++p) {
    results[p].status = batch.status[p].ok() ? status : batch.status[p];
  }
  Conclude(batch, std::move(results));
}

void Engine::Impl::TakeOutOfService(size_t device, FallbackCause cause, const std::string& reason) {
  Entries stranded;
  bool was_healthy = false, lost = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    DeviceHealthMachine& health = devices[device]->health;
    const DeviceHealth before = health.state();
    was_healthy = health.Failed(cause, reason, clock.Now());
    lost = health.state() == DeviceHealth::kLost && before != DeviceHealth::kLost;
    healthy[device] = health.takes_work();
    timer_wake.notify_one();  // there is a probe to come
    if (was_healthy) {
      stranded = scheduler.TakeAll(
          [this](const BatchQueue& waiting) { return !WhoServesLocked(*waiting.block()).any; });
      UpdateQueueGaugesLocked();
      // What waits is somebody else's now.
      for (auto& other : devices) other->WakeAll();
    }
  }
  const Device lost_device = device_list[device];
  if (was_healthy || lost) {
    Log(LogLevel::kError, lost ? "device_lost" : "device_quarantined",
        lost ? reason + "; only a restart of the server can bring it back" : reason,
        {{"device", DeviceName(lost_device)},
         {"cause", Name(cause)},
         {"refused", stranded.size()}});
  }
  if (!was_healthy) return;
  metrics.SetDeviceHealthy(lost_device, false);
  metrics.CountQuarantine(lost_device, cause);
  Refuse(std::move(stranded), Reason::kDeviceLost, Text(LostError(lost_device, reason)),
         absl::Seconds(1));
  if (options.on_device_change) options.on_device_change();
}

void Engine::Impl::GiveUpLanes(absl::Time overdue_by, const absl::Status& error) {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (device_list[i].type == DeviceType::kCpu) continue;
    for (auto& worker : devices[i]->workers) {
      Batch batch;
      if (!worker->GiveUp(overdue_by, &batch)) continue;
      held_weights->LaneHangs(i);
      std::string what = "a probe";
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (worker->task != nullptr && worker->task->started) what = worker->task->what;
      }
      if (!batch.empty()) what = absl::StrCat(batch.block->name, ", ", batch.run.rows, " tokens");
      const std::string reason = absl::StrCat("a lane hangs on ", what);
      Log(LogLevel::kError, "lane_hung", reason, {{"device", DeviceName(device_list[i])}});
      TakeOutOfService(i, FallbackCause::kHung, reason);
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (worker->task != nullptr) {
          EndTaskLocked(*worker, worker->task->started
                                     ? absl::UnavailableError(
                                           absl::StrCat(DeviceName(device_list[i]), ": ", reason))
                                     : absl::OkStatus());
        }
      }
      if (batch.empty()) continue;
      if (!error.ok()) {
        Fail(batch, error);
      } else if (!HandOver(i, *worker, FallbackCause::kHung, batch)) {
        Fail(batch, LostError(device_list[i], reason));
      }
    }
  }
}

void Engine::Impl::CameBack(size_t device) {
  held_weights->LaneCameBack(device);
  {
    std::lock_guard<std::mutex> lock(mutex);
    devices[device]->health.LaneCameBack();
    timer_wake.notify_one();  // it may be probed now
  }
  Log(LogLevel::kWarning, "lane_came_back",
      "a lane that hung has come back; its results are dropped",
      {{"device", DeviceName(device_list[device])}});
}

void Engine::Impl::StartProbesLocked(absl::Time now) {
  for (auto& state : devices) {
    if (state->health.next_probe() > now) continue;
    const int64_t round = state->health.StartProbe(static_cast<int>(state->workers.size()));
    for (auto& worker : state->workers) worker->probe_due = round;
    state->WakeAll();
  }
}

void Engine::Impl::Probed(size_t device, int64_t round, const absl::Status& status) {
  const std::string name = DeviceName(device_list[device]);
  if (absl::IsUnavailable(status)) {
    TakeOutOfService(device, FallbackCause::kDeviceLost, Text(status));
    return;
  }
  bool recovered = false;
  FallbackCause cause;
  {
    std::lock_guard<std::mutex> lock(mutex);
    DeviceHealthMachine& health = devices[device]->health;
    recovered = health.Probed(round, status.ok(), Text(status), clock.Now());
    cause = health.cause();
    healthy[device] = health.takes_work();
    if (recovered) {
      for (auto& other : devices) other->WakeAll();
    } else {
      timer_wake.notify_one();
    }
  }
  if (!status.ok()) {
    Log(LogLevel::kWarning, "probe_failed", Text(status), {{"device", name}});
  }
  if (!recovered) return;
  metrics.SetDeviceHealthy(device_list[device], true);
  metrics.CountRecovery(device_list[device], cause);
  Log(LogLevel::kInfo, "device_recovered", "its lanes computed what they were asked",
      {{"device", name}, {"cause", Name(cause)}});
  if (options.on_device_change) options.on_device_change();
}

bool Engine::Impl::HasStuckLane() const {
  std::lock_guard<std::mutex> lock(mutex);
  return std::any_of(devices.begin(), devices.end(),
                     [](const auto& state) { return state->health.stuck_lanes() > 0; });
}

// When the timer has to look again, whatever else happens.
absl::Time Engine::Impl::NextCheckLocked(absl::Time now) const {
  absl::Time next = scheduler.queue().NextDeadline();
  for (const auto& takeover : takeovers) {
    for (const Part& part : takeover->batch.parts) {
      if (!part.entry->ended) next = std::min(next, part.entry->deadline);
    }
  }
  for (const auto& state : devices) {
    if (state->device.type == DeviceType::kCpu) continue;
    // What a lane begins after this look is not overdue before the watchdog's time has passed.
    next = std::min({next, state->health.next_probe(), now + options.watchdog});
    for (const auto& worker : state->workers) next = std::min(next, worker->overdue_at());
  }
  return next;
}

Entries Engine::Impl::TakeExpiredLocked(absl::Time now) {
  Entries expired = scheduler.TakeExpired(now);
  for (const auto& takeover : takeovers) {
    scheduler.ExpireTaken(takeover->batch.parts, now, &expired);
  }
  if (!expired.empty()) UpdateQueueGaugesLocked();
  return expired;
}

void Engine::Impl::RunTimer() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    const absl::Time now = clock.Now();
    Entries expired = TakeExpiredLocked(now);
    lock.unlock();
    Refuse(std::move(expired), Reason::kExpired, "the deadline passed while the request waited");
    GiveUpLanes(now, absl::OkStatus());
    lock.lock();
    if (timer_stops) return;
    StartProbesLocked(now);
    clock.WaitUntil(timer_wake, lock, NextCheckLocked(now));
  }
}

}  // namespace fuseblock
