// Where a thread that submits a short batch for the CPU runs it itself: nobody has to be woken, and
// what it has just received is still in its core's cache. The lane has no thread, and little memory
// of its own; outputs go to memory that the answer's ticket accounts for.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "server/engine/batch.h"
#include "server/engine/engine_impl.h"
#include "server/engine/lane.h"

namespace fuseblock {

class CallerLane {
 public:
  // Of the inputs that a batch may have, and of its intermediates.
  static constexpr size_t kBytes = size_t{1} << 20;

  // `index` tells it apart from the device's other lanes.
  static absl::StatusOr<std::unique_ptr<CallerLane>> Create(Engine::Impl& engine, size_t device,
                                                            size_t index, const LaneFactory& make);
  ~CallerLane();

  // The longest batch of the block, of at most `limit` tokens, that such a lane has room for.
  static int64_t TokensMax(const EngineBlock& block, size_t device, int64_t limit);

  size_t device() const { return device_; }
  size_t staging_bytes() const { return staging_.size(); }
  size_t workspace_bytes() const { return lane_->device_bytes(); }
  LaneStatus status() const { return {busy_, batches_, last_batch_tokens_}; }

  // Runs and answers a request that was started at once. The lane is the caller's until then.
  void Run(Part part);

 private:
  CallerLane(Engine::Impl& engine, size_t device, size_t index, std::unique_ptr<Lane> lane,
             Buffer staging);

  Engine::Impl& engine_;
  const size_t device_;
  const std::unique_ptr<Lane> lane_;
  const Buffer staging_;
  MemoryGauge* const gathered_;
  MemoryGauge* const workspace_;
  LaneMetrics* const metrics_;
  Batch batch_;

  std::atomic<bool> busy_{false};
  std::atomic<int64_t> batches_{0};
  std::atomic<int64_t> last_batch_tokens_{0};
};

}  // namespace fuseblock
