#include "server/engine/caller_lane.h"

#include <utility>

#include "server/engine/output_pool.h"
#include "server/reason.h"

namespace fuseblock {

absl::StatusOr<std::unique_ptr<CallerLane>> CallerLane::Create(Engine::Impl& engine, size_t device,
                                                               size_t index,
                                                               const LaneFactory& make) {
  auto lane = make(engine.device_list[device], 1);
  if (!lane.ok()) return lane.status();
  LaneBytes bytes;
  bytes.workspace = kBytes;
  if (absl::Status s = (*lane)->Reserve(bytes); !s.ok()) return s;
  auto staging = Buffer::Allocate((*lane)->staging(), kBytes);
  if (!staging.ok()) return staging.status();
  return std::unique_ptr<CallerLane>(
      new CallerLane(engine, device, index, *std::move(lane), *std::move(staging)));
}

CallerLane::CallerLane(Engine::Impl& engine, size_t device, size_t index,
                       std::unique_ptr<Lane> lane, Buffer staging)
    : engine_(engine),
      device_(device),
      lane_(std::move(lane)),
      staging_(std::move(staging)),
      gathered_(engine.metrics.Memory(lane_->device(), MemoryPool::kStagingIn)),
      workspace_(engine.metrics.Memory(lane_->device(), MemoryPool::kWorkspace)),
      metrics_(engine.metrics.Lane(lane_->device(), static_cast<int>(index))) {
  gathered_->AddReserved(static_cast<int64_t>(staging_.size()));
  workspace_->AddReserved(static_cast<int64_t>(lane_->device_bytes()));
}

CallerLane::~CallerLane() {
  gathered_->AddReserved(-static_cast<int64_t>(staging_.size()));
  workspace_->AddReserved(-static_cast<int64_t>(lane_->device_bytes()));
}

int64_t CallerLane::TokensMax(const EngineBlock& block, size_t device, int64_t limit) {
  int64_t fits = 0, too_many = limit + 1;
  while (too_many - fits > 1) {
    const int64_t tokens = fits + (too_many - fits) / 2;
    const LaneBytes needed = block.BytesNeeded(device, tokens);
    (needed.inputs <= kBytes && needed.workspace <= kBytes ? fits : too_many) = tokens;
  }
  return fits;
}

void CallerLane::Run(Part part) {
  const absl::Time started = engine_.clock.Now();
  batch_.Clear();
  batch_.parts.push_back(std::move(part));
  const Entry& entry = *batch_.parts.front().entry;
  EngineBlock& block = *entry.queue->block();
  busy_ = true;
  PartResult result;
  result.device = lane_->device();
  result.timings.queue = absl::ToDoubleMicroseconds(started - entry.submitted);

  const std::shared_ptr<std::byte> outputs =
      AllocateOutputs(block.OutputBytes(entry.queue->form(), entry.request.tokens));
  // Without memory nothing runs.
  Gather(batch_, staging_.data(), outputs != nullptr ? outputs.get() : staging_.data(),
         lane_->parallel_for());
  batch_.run.block = block.on_device[device_];
  gathered_->AddUsed(static_cast<int64_t>(staging_.size()));
  last_batch_tokens_ = batch_.run.rows;
  const absl::Time gathered = engine_.clock.Now();

  LaneTimes times;
  absl::Status ran;
  if (outputs == nullptr) {
    ran = MakeError(Reason::kMemory, "no memory for the answer");
  } else if (batch_.run.rows > 0) {
    ran = lane_->Run(batch_.run, &times);
  }
  result.status = batch_.status.front();
  gathered_->AddUsed(-static_cast<int64_t>(staging_.size()));
  if (ran.ok()) {
    const absl::Duration took = engine_.clock.Now() - started;
    engine_.Succeeded(batch_, device_, took);
    engine_.CountIfFallback(batch_, device_);
    block.metrics->ObserveBatch(1, batch_.run.rows, 0);
    metrics_->ObserveBatch(took);
    ++batches_;
    result.timings.batch = absl::ToDoubleMicroseconds(gathered - started);
    result.timings.compute = absl::ToDoubleMicroseconds(times.compute);
    for (size_t o = 0; o < batch_.run.output_count; ++o) {
      result.outputs[o] = OutputOf(batch_, 0, o);
    }
    result.memory = outputs;
  } else {
    ran = FailedForGood(lane_->device(), batch_, ran);
    if (result.status.ok()) result.status = std::move(ran);
  }
  busy_ = false;
  PartResults results;
  results.push_back(std::move(result));
  engine_.Conclude(batch_, std::move(results), this);
}

}  // namespace fuseblock
