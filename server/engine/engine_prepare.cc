// Preparing a block before it is published: whether its memory may be, then the lanes' memory, its
// graphs, and what it costs. All that a device could hang in is a task of its lanes' workers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/buckets.h"
#include "server/engine/caller_lane.h"
#include "server/engine/engine_impl.h"
#include "server/engine/worker.h"
#include "server/observe/log.h"

namespace fuseblock {

namespace {

void LogNotCaptured(Device device, const EngineBlock& block, const absl::Status& why) {
  Log(LogLevel::kWarning, "not_captured", absl::StrCat("launched directly: ", Text(why)),
      {{"block", block.name}, {"device", DeviceName(device)}});
}

}  // namespace

absl::Status Engine::Impl::Prepare(const ServedBlock& block, const Budget& budget,
                                   absl::Duration measure_max) {
  // One at a time: each is measured against what the ones before it left.
  std::lock_guard<std::mutex> one(prepare_mutex);
  std::vector<const Block*> on_device;
  for (const auto& state : devices) {
    on_device.push_back(state->workers.empty() ? nullptr
                                               : state->workers.front()->lane().BlockOf(block));
  }
  const auto account = std::make_shared<BudgetAccount>(
      BudgetAccount{absl::StrCat("the budget of ", block.name), budget, {}});
  // Tasks share it, with its weights, so that a lane that hangs in one keeps what it uses.
  const auto preparing = std::make_shared<EngineBlock>(
      block, on_device, options.batch_tokens_max, account, metrics.Block(block.name), held_weights);
  EngineBlock& beside = *preparing;
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(block.name, ": ", status.message()));
  };
  const int64_t held_by = std::count(beside.has.begin(), beside.has.end(), true);
  const std::vector<DeviceMemory> plan = PlanMemory(&beside);
  if (absl::Status s = CheckMemory(plan, options.host_bytes_max); !s.ok()) return named(s);
  for (size_t i = 0; i < devices.size(); ++i) {
    beside.graphs.emplace_back(devices[i]->workers.size());
    if (!beside.has[i]) continue;
    if (!devices[i]->caller_lanes.empty()) {
      beside.caller_tokens_max = CallerLane::TokensMax(beside, i, options.batch_tokens_max);
    }
    if (absl::Status s = PrepareOn(i, preparing, measure_max / held_by); !s.ok()) return named(s);
  }
  if (held_by == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(block.name, ": is on none of the engine's devices"));
  }
  block.metrics = beside.metrics;
  block.engine = preparing;
  return absl::OkStatus();
}

absl::Status Engine::Impl::PrepareOn(size_t device, const std::shared_ptr<EngineBlock>& preparing,
                                     absl::Duration measure_max) {
  const EngineBlock& block = *preparing;
  absl::Status status = ReserveOn(device, block.BytesNeeded(device, options.batch_tokens_max));
  for (const auto& worker : devices[device]->workers) {
    if (!status.ok()) return status;
    status = CaptureOn(device, *worker, preparing);
  }
  return status.ok() ? MeasureOn(device, preparing, measure_max) : status;
}

absl::Status Engine::Impl::ReserveOn(size_t device, const LaneBytes& bytes) {
  DeviceState& state = *devices[device];
  LaneBytes before;
  {
    std::lock_guard<std::mutex> lock(mutex);
    before = state.needed;
    state.needed = Larger(before, bytes);
    if (!healthy[device]) return absl::OkStatus();  // it grows before it takes work again
  }
  for (auto& worker : state.workers) {
    absl::Status status = RunOnLane(device, *worker, "growing its memory",
                                    [bytes](LaneWorker& lane) { return lane.Reserve(bytes); });
    if (status.ok()) continue;
    std::lock_guard<std::mutex> lock(mutex);
    state.needed = before;
    return status;
  }
  return absl::OkStatus();
}

// By form and token bucket. The block is launched directly where the lane has no graphs, where they
// save nothing, where they no longer fit into EngineOptions::graphs_per_lane_max or into memory,
// and where the device is out of service by now. UNAVAILABLE: it is lost, or hangs.
absl::Status Engine::Impl::CaptureOn(size_t device, LaneWorker& worker,
                                     const std::shared_ptr<EngineBlock>& preparing) {
  const EngineBlock& block = *preparing;
  const auto graphs = std::make_shared<std::shared_ptr<BlockGraphs>>();
  const int buckets = BucketsUpTo(options.batch_tokens_max);
  int64_t room = options.graphs_per_lane_max - worker.lane().graphs().count;
  for (int form = 0; form < kForms; ++form) {
    if (!HasForm(block.inputs, form)) continue;
    for (int bucket = 0; bucket < buckets; ++bucket) {
      if (room-- <= 0 || !Prepared(device, worker, block)) return absl::OkStatus();
      absl::Status status = RunOnLane(device, worker, absl::StrCat("capturing ", block.name),
                                      [preparing, graphs, form, bucket](LaneWorker& lane) {
                                        return lane.Capture(*preparing, form, bucket, graphs.get());
                                      });
      if (absl::IsUnavailable(status)) return status;
      if (!status.ok()) {
        LogNotCaptured(device_list[device], block, status);
        return absl::OkStatus();
      }
      if (*graphs == nullptr) return absl::OkStatus();
    }
  }
  // What graphs take is known only now. Without them the sum is what Prepare has checked.
  if (absl::Status s = CheckMemory(PlanMemory(nullptr), options.host_bytes_max); !s.ok()) {
    LogNotCaptured(device_list[device], block, s);
    return absl::OkStatus();
  }
  preparing->graphs[device][worker.index()] = *graphs;
  return absl::OkStatus();
}

// Batches of ever more tokens, until that much time was spent. A failure is left for a real batch
// to meet.
absl::Status Engine::Impl::MeasureOn(size_t device, const std::shared_ptr<EngineBlock>& preparing,
                                     absl::Duration measure_max) {
  if (measure_max <= absl::ZeroDuration()) return absl::OkStatus();
  EngineBlock& block = *preparing;
  LaneWorker& worker = *devices[device]->workers.front();
  const absl::Time until = clock.Now() + measure_max;
  const int64_t tokens_max = options.batch_tokens_max;
  for (int64_t tokens = 1; clock.Now() < until; tokens = std::min(tokens * 4, tokens_max)) {
    if (!Prepared(device, worker, block)) return absl::OkStatus();
    const auto took = std::make_shared<absl::StatusOr<absl::Duration>>(absl::CancelledError());
    absl::Status status = RunOnLane(device, worker, absl::StrCat("measuring ", block.name),
                                    [preparing, took, tokens, until](LaneWorker& lane) {
                                      *took = lane.TimeOf(*preparing, tokens, until);
                                      return absl::OkStatus();
                                    });
    if (!status.ok()) return status;
    if (!took->ok()) return absl::OkStatus();
    block.costs[device].Measure(tokens, **took);
    // The next one would not end in time.
    if (tokens == tokens_max || clock.Now() + **took * 4 > until) return absl::OkStatus();
  }
  return absl::OkStatus();
}

// Whether the device is in service, and the lane has been grown for the block.
bool Engine::Impl::Prepared(size_t device, const LaneWorker& worker,
                            const EngineBlock& block) const {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!healthy[device]) return false;
  }
  return block.BytesNeeded(device, options.batch_tokens_max).FitIn(worker.bytes());
}

}  // namespace fuseblock
