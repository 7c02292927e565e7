// A lane's thread with its host staging: takes batches, gathers them, runs them on the lane,
// answers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "server/engine/batch.h"
#include "server/engine/engine_impl.h"
#include "server/engine/lane.h"
#include "server/engine/output_pool.h"

namespace fuseblock {

class LaneWorker {
 public:
  // Output slabs a lane: one is filled while others are being sent.
  static constexpr int kSlabs = 3;

  LaneWorker(Engine::Impl& engine, size_t device, size_t index, std::unique_ptr<Lane> lane);
  ~LaneWorker();

  void Start();
  void Join();  // after the engine told the device's workers to stop

  const Lane& lane() const { return *lane_; }
  // Grows staging and lane to at least that, between two batches. RESOURCE_EXHAUSTED, with the sum
  // shown, leaves all as it was.
  absl::Status Reserve(const LaneBytes& bytes);
  // The block's launches as graphs, by form and token bucket, each captured between two batches.
  // Null where the lane has none, where they save nothing, or where they no longer fit into
  // EngineOptions::graphs_per_lane_max: then it launches directly. UNAVAILABLE: the device is lost.
  absl::StatusOr<std::shared_ptr<BlockGraphs>> Capture(const EngineBlock& block);
  // Runs the block on zeros, batches of ever more tokens, until that much time was spent, and tells
  // its cost model what they took. Needs what Reserve gave. A failure is left for a real batch to
  // meet.
  void Measure(EngineBlock& block, absl::Duration time_max);
  // What Reserve was asked for so far; only whoever calls Reserve may ask.
  const LaneBytes& bytes() const { return bytes_; }
  size_t staging_bytes() const { return staging_bytes_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  LaneStatus status() const { return {busy_, batches_, last_batch_tokens_}; }

  // On the thread of a caller that the lane was lent to: runs callers_batch and then what is
  // queued, as long as that takes no longer than a caller may be kept, and gives the lane back.
  void RunForCaller();

  // The engine's lock guards these: when the running batch should be done, and whether a caller has
  // the lane.
  absl::Time busy_until = absl::InfinitePast();
  bool lent = false;
  Batch callers_batch;  // whom the lane is lent to has this

 private:
  // Holds the worker between two batches.
  class Pause;

  absl::Status Grow(const LaneBytes& wanted);
  void Loop();
  void RunBatch(Batch& batch, absl::Time started);
  void Deliver(Batch& batch, const absl::Status& status, size_t answered_by, Timings timings,
               absl::Time started);
  // What a batch of so many tokens takes at best; nullopt when it fails. Holds the staging.
  std::optional<absl::Duration> TimeOf(EngineBlock& block, int64_t tokens, absl::Time until);
  void Keep(const Batch& batch, size_t part, PartResult* result);
  void Observe(const Batch& batch, size_t answered_by, int64_t padded_rows);

  Engine::Impl& engine_;
  const size_t device_;
  const size_t index_;  // among the device's lanes
  const std::unique_ptr<Lane> lane_;
  MemoryGauge* const gathered_;
  MemoryGauge* const sent_;
  MemoryGauge* const workspace_;
  LaneMetrics* const metrics_;

  // Held while a batch uses the staging. A Pause goes first when both want it.
  std::mutex staging_mutex_;
  std::condition_variable resumed_;
  std::atomic<int> pausing_{0};
  LaneBytes bytes_;
  Buffer staging_in_;
  std::shared_ptr<OutputPool> pool_;
  OutputPool::Slab slab_;  // the one that the next batch's outputs go to

  std::atomic<size_t> staging_bytes_{0};
  std::atomic<size_t> workspace_bytes_{0};
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> batches_{0};
  std::atomic<int64_t> last_batch_tokens_{0};

  std::thread thread_;
};

}  // namespace fuseblock
