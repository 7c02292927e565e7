// The public face of the engine, and what happens on a caller's thread: Submit, Cancel, Drain.
#include "server/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/caller_lane.h"
#include "server/engine/engine_impl.h"
#include "server/engine/worker.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

absl::Status CheckPositive(const char* name, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected > 0, got ", value));
}

absl::Status CheckAtMost(const char* name, int64_t value, const char* bound_name, int64_t bound) {
  if (value <= bound) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected at most ", bound_name, " (", bound, "), got ", value));
}

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.devices.empty()) return absl::InvalidArgumentError("devices: expected at least one");
  for (const absl::Status& status :
       {CheckPositive("lanes_per_device", options.lanes_per_device),
        CheckPositive("batch_tokens_max", options.batch_tokens_max),
        CheckPositive("queue_tokens_max", options.queue_tokens_max),
        CheckPositive("queue_bytes_max", options.queue_bytes_max),
        CheckPositive("queue_requests_max", options.queue_requests_max),
        CheckPositive("watchdog in ns", absl::ToInt64Nanoseconds(options.watchdog)),
        CheckPositive("request_tokens_max", options.request_tokens_max),
        CheckAtMost("request_tokens_max", options.request_tokens_max, "queue_tokens_max",
                    options.queue_tokens_max)}) {
    if (!status.ok()) return status;
  }
  for (const auto& [name, value] : {std::pair("graphs_per_lane_max", options.graphs_per_lane_max),
                                    std::pair("device_bytes_max", options.device_bytes_max),
                                    std::pair("host_bytes_max", options.host_bytes_max)}) {
    if (value < 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected >= 0, got ", value));
    }
  }
  if (options.cpu_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cpu_threads: expected >= 0, got ", options.cpu_threads));
  }
  return absl::OkStatus();
}

// Out of line, or GCC takes the bytes that an empty list does not use for a mistake.
[[gnu::noinline]] Outcome Refusal(absl::Status status) {
  Outcome outcome;
  outcome.status = std::move(status);
  return outcome;
}

void Answer(Request& request, absl::Status status) {
  std::move(request.done)(Refusal(std::move(status)));
}

// The budget that is left for the rest of a wait; the wall clock is read once, at the start.
class Countdown {
 public:
  explicit Countdown(absl::Time deadline)
      // A day stands for ever: what waits that long is not waited for.
      : end_(std::chrono::steady_clock::now() +
             absl::ToChronoNanoseconds(
                 std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Hours(24)))) {}
  std::chrono::steady_clock::time_point end() const { return end_; }
  absl::Duration left() const {
    return absl::FromChrono(std::max(end_ - std::chrono::steady_clock::now(),
                                     std::chrono::steady_clock::duration::zero()));
  }

 private:
  const std::chrono::steady_clock::time_point end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       Metrics& metrics) {
  if (absl::Status s = CheckOptions(options); !s.ok()) return s;
  auto impl = std::make_unique<Impl>(options, metrics);
  if (absl::Status s = impl->MakeLanes(); !s.ok()) return s;
  impl->Start();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
absl::Status Engine::Prepare(const ServedBlock& block, const Budget& budget,
                             absl::Duration measure_max) {
  return impl_->Prepare(block, budget, measure_max);
}
Engine::RequestId Engine::Submit(Request request) { return impl_->Submit(std::move(request)); }
void Engine::Cancel(RequestId id) { impl_->Cancel(id); }
bool Engine::Drain(absl::Time deadline) { return impl_->Drain(deadline); }
bool Engine::HasStuckLane() const { return impl_->HasStuckLane(); }
bool Engine::CanServe(const ServedBlock& block) const { return impl_->CanServe(block); }
std::vector<DeviceStatus> Engine::Devices() const { return impl_->Devices(); }
std::vector<DeviceMemory> Engine::Memory() const { return impl_->Memory(); }
void Engine::LogMemory() const { impl_->LogMemory(); }
LoadStatus Engine::Load(size_t busiest_max) const { return impl_->Load(busiest_max); }

Engine::RequestId Engine::Impl::Submit(Request request) {
  EngineBlock* block = request.block == nullptr ? nullptr : request.block->engine.get();
  if (block == nullptr) {
    Answer(request, MakeError(Reason::kInternal, "the block was not prepared for this engine"));
    return 0;
  }
  Runner runner;
  const absl::StatusOr<RequestId> id = Enqueue(request, *block, &runner);
  if (!id.ok()) {
    block->metrics->CountShed(ReasonOf(id.status()));
    request.payload.reset();
    Answer(request, id.status());
    return 0;
  }
  if (runner.wake != nullptr) runner.wake->notify_one();
  // Not before: the one that looks out would come to a lock that is held.
  if (runner.signal != nullptr) ++*runner.signal;
  if (runner.caller != nullptr) runner.caller->Run(std::move(runner.part));
  return *id;
}

absl::StatusOr<Engine::RequestId> Engine::Impl::Enqueue(Request& request, EngineBlock& block,
                                                        Runner* runner) {
  const absl::StatusOr<int> form = block.FormOf(request);
  if (!form.ok()) return form.status();
  auto entry = std::make_shared<Entry>();
  entry->queue = &block.queues[*form];
  entry->bytes = request.tokens * static_cast<int64_t>(block.RowBytes(*form));
  entry->submitted = clock.Now();
  if (request.deadline < absl::InfiniteFuture()) {
    entry->deadline = entry->submitted + (request.deadline - absl::Now());
  }

  std::lock_guard<std::mutex> lock(mutex);
  const Serving serving = WhoServesLocked(block);
  if (!serving.any) {
    return MakeError(Reason::kDeviceLost, "the block's device is lost", absl::Seconds(1));
  }
  entry->request = std::move(request);
  if (absl::Status s = scheduler.Admit(entry, CapacityLocked(block, serving, entry->submitted),
                                       entry->submitted);
      !s.ok()) {
    request = std::move(entry->request);
    return s;
  }
  const RequestId id = entry->id;
  ++unanswered;
  *runner = RunnerLocked(block, serving, entry->request.tokens);
  if (runner->caller != nullptr) {
    runner->part = scheduler.StartAtOnce(entry);
  } else {
    QueueLocked(entry);
  }
  return id;
}

void Engine::Impl::QueueLocked(const EntryPtr& entry) {
  if (entry->deadline < scheduler.queue().NextDeadline()) timer_wake.notify_one();
  scheduler.Queue(entry);
  UpdateQueueGaugesLocked();
}

Engine::Impl::Runner Engine::Impl::RunnerLocked(const EngineBlock& block, const Serving& serving,
                                                int64_t tokens) {
  Runner runner;
  for (size_t i = 0; i < devices.size(); ++i) {
    DeviceState& state = *devices[i];
    if (state.device.type != serving.type || !block.has[i] || !healthy[i]) continue;
    if (state.spinning > 0) {
      ++state.calls;
      runner.signal = &state.signal;
      runner.wake = nullptr;
      return runner;
    }
    if (state.asleep <= 0 || runner.wake != nullptr) continue;
    runner.wake = &state.work;
    // Nobody is overtaken: what waits already is the worker's, which is on its way.
    if (state.free_caller_lanes.empty() || tokens > block.caller_tokens_max || !takeovers.empty() ||
        state.workers.front()->task != nullptr || !scheduler.queue().empty() ||
        block.costs[i].PredictAtMost(tokens) > options.caller_runs_max) {
      continue;
    }
    CallerLane* lane = state.free_caller_lanes.back();
    state.free_caller_lanes.pop_back();
    return {nullptr, nullptr, lane, {}};
  }
  return runner;
}

Scheduler::Capacity Engine::Impl::CapacityLocked(const EngineBlock& block, const Serving& serving,
                                                 absl::Time now) const {
  Scheduler::Capacity capacity{0, absl::ZeroDuration(), nullptr};
  absl::Time free_at = absl::InfiniteFuture();
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i]->device.type != serving.type || !block.has[i] || !healthy[i]) continue;
    if (capacity.cost == nullptr) capacity.cost = &block.costs[i];
    for (const auto& worker : devices[i]->workers) {
      free_at = std::min(free_at, worker->busy_until);
      ++capacity.lanes;
    }
  }
  capacity.wait = std::max(free_at - now, absl::ZeroDuration());
  return capacity;
}

LoadStatus Engine::Impl::Load(size_t busiest_max) const {
  LoadStatus load;
  std::map<std::string, QueueStatus> by_block;
  {
    std::lock_guard<std::mutex> lock(mutex);
    load.queue_tokens = scheduler.queue().tokens();
    load.queue_bytes = scheduler.queue().bytes();
    scheduler.queue().ForEachWaiting([&](const BatchQueue& waiting) {
      QueueStatus& block = by_block[waiting.block()->name];
      block.requests += waiting.requests();
      block.tokens += waiting.tokens();
      block.bytes +=
          waiting.tokens() * static_cast<int64_t>(waiting.block()->RowBytes(waiting.form()));
    });
  }
  for (auto& [name, block] : by_block) {
    load.queue_requests += block.requests;
    block.block = name;
    load.busiest.push_back(std::move(block));
  }
  std::sort(load.busiest.begin(), load.busiest.end(),
            [](const QueueStatus& a, const QueueStatus& b) { return a.tokens > b.tokens; });
  if (load.busiest.size() > busiest_max) load.busiest.resize(busiest_max);
  const AdmissionUse use = admission->use();
  load.admitted_requests = use.requests;
  load.admitted_requests_max = options.queue_requests_max;
  load.admitted_tokens = use.tokens;
  load.admitted_tokens_max = options.queue_tokens_max;
  load.admitted_bytes = use.bytes;
  load.admitted_bytes_max = options.queue_bytes_max;
  load.tenants = admission->BusiestTenants(busiest_max, &load.tenants_count);
  return load;
}

void Engine::Impl::UpdateQueueGaugesLocked() {
  metrics.SetQueue(scheduler.queue().tokens(), scheduler.queue().bytes());
}

void Engine::Impl::Cancel(RequestId id) {
  EntryPtr cancelled;
  {
    std::lock_guard<std::mutex> lock(mutex);
    cancelled = scheduler.Cancel(id);
    if (cancelled == nullptr) return;
    UpdateQueueGaugesLocked();
  }
  Refuse({std::move(cancelled)}, Reason::kCancelled, "cancelled by the client");
}

void Engine::Impl::Refuse(Entries refused, Reason reason, std::string_view message,
                          absl::Duration retry_after) {
  for (const EntryPtr& entry : refused) {
    entry->ticket.Release();
    if (!entry->with_lanes) entry->request.payload.reset();
    entry->queue->block()->metrics->CountShed(reason);
    Answer(entry->request, MakeError(reason, message, retry_after));
  }
  const int64_t count = static_cast<int64_t>(refused.size());
  refused.clear();  // the blocks may go now, before a drain is told that all is done
  Answered(count, nullptr);
}

void Engine::Impl::Answered(int64_t requests, CallerLane* lane) {
  if (requests == 0 && lane == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex);
  if (lane != nullptr) devices[lane->device()]->free_caller_lanes.push_back(lane);
  unanswered -= requests;
  if (unanswered == 0) all_answered.notify_all();
}

bool Engine::Impl::Drain(absl::Time deadline) {
  const Countdown countdown(deadline);
  admission->Close();
  {
    std::unique_lock<std::mutex> lock(mutex);
    all_answered.wait_until(lock, countdown.end(), [this] { return unanswered == 0; });
  }
  if (admission->AwaitEmpty(countdown.left())) return true;
  Entries queued;
  {
    std::lock_guard<std::mutex> lock(mutex);
    queued = scheduler.TakeAll([](const BatchQueue&) { return true; });
    UpdateQueueGaugesLocked();
  }
  Refuse(std::move(queued), Reason::kDraining, "the server stopped before this request's turn",
         absl::Seconds(1));
  GiveUpLanes(absl::InfiniteFuture(),
              MakeError(Reason::kDraining, "the server stopped before this request was done",
                        absl::Seconds(1)));
  return false;
}

}  // namespace fuseblock
