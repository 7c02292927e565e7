// A lane's thread with its host staging: takes batches, gathers them, runs them on the lane,
// answers.
//
// A lane that hangs is given up: the engine takes its batch, whose inputs stay in this staging and
// whose outputs another lane writes into its own, so that neither what the lane reads nor what it
// may yet write is used for anything else before it comes back.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "server/engine/batch.h"
#include "server/engine/engine_impl.h"
#include "server/engine/flight.h"
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
  // After the engine told the device's workers to stop: waits until the thread has left, or, when
  // the lane was given up and is not back, leaves it to itself. Such an orphan must live for ever;
  // its thread, should the lane come back, touches nothing else.
  void Join();
  bool orphaned() const { return orphaned_; }

  // A lane is done with the batch; results by part. Answers the requests that have ended with it.
  static void Conclude(Engine::Impl& engine, Batch& batch, std::vector<PartResult> results);

  const Lane& lane() const { return *lane_; }
  // Grows staging and lane to at least that, between two batches. RESOURCE_EXHAUSTED, with the sum
  // shown, leaves all as it was. A lane that is given up is left alone: it grows before it is
  // probed.
  absl::Status Reserve(const LaneBytes& bytes);
  // The block's launches as graphs, by form and token bucket, each captured between two batches.
  // Null where the lane has none, where they save nothing, where they no longer fit into
  // EngineOptions::graphs_per_lane_max, or when the lane was given up: then it launches directly.
  // UNAVAILABLE: the device is lost.
  absl::StatusOr<std::shared_ptr<BlockGraphs>> Capture(const EngineBlock& block);
  // Runs the block on zeros, batches of ever more tokens, until that much time was spent, and tells
  // its cost model what they took. Needs what Reserve gave. A failure is left for a real batch to
  // meet.
  void Measure(EngineBlock& block, absl::Duration time_max);

  // Takes the batch (none for a probe) away from a lane that is overdue. False when no lane is.
  bool GiveUp(absl::Time now, Batch* batch);
  // While a batch whose inputs lie here is another worker's.
  void LendStaging();
  void ReturnStaging();
  // What Reserve gave so far.
  LaneBytes bytes() const;
  size_t staging_bytes() const { return staging_bytes_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  LaneStatus status() const { return {busy_, batches_, last_batch_tokens_}; }

  // On the thread of a caller that the lane was lent to: runs callers_batch and then what is
  // queued, as long as that takes no longer than a caller may be kept, and gives the lane back.
  void RunForCaller();

  // Guarded by the engine's lock.
  absl::Time busy_until = absl::InfinitePast();  // when the running batch should be done
  int64_t probe_due = 0;                         // the round in which it has to be probed; 0: none
  bool lent = false;                             // a caller has the lane
  Batch callers_batch;                           // whom the lane is lent to has this

 private:
  using Work = Engine::Impl::Work;
  // Holds the staging between two batches.
  class Pause;

  absl::Status Grow(const LaneBytes& wanted);
  // Whether it has been grown for the block.
  bool Fits(const EngineBlock& block) const;
  void Loop();
  bool Do(Work& work);
  bool RunBatch(absl::Time started, absl::Duration patience);
  void RunTakeOver(Engine::Impl::TakeOver& takeover);
  bool Probe(int64_t round, absl::Duration patience);
  bool LandedLate(Flight::Owner owner);
  void HoldStaging();
  bool TryHoldStaging();
  void Deliver(Batch& batch, Timings timings, absl::Time started);
  void Observe(const Batch& batch, int64_t padded_rows, absl::Duration took);
  void Keep(const Batch& batch, size_t part, PartResult* result);
  // What a batch of so many tokens takes at best; nullopt when it fails. Holds the staging.
  std::optional<absl::Duration> TimeOf(EngineBlock& block, int64_t tokens, absl::Time until);

  Engine::Impl& engine_;
  const size_t device_;
  const size_t index_;  // among the device's lanes
  const std::unique_ptr<Lane> lane_;
  MemoryGauge* const gathered_;
  MemoryGauge* const sent_;
  MemoryGauge* const workspace_;
  LaneMetrics* const metrics_;

  // A Pause goes first when it and a batch both want the staging.
  mutable std::mutex staging_mutex_;
  std::condition_variable changed_;
  int staging_users_ = 0;  // the lane or a Pause, and whom it is lent to
  int pausing_ = 0;
  bool left_ = true;  // the thread
  bool orphaned_ = false;
  LaneBytes bytes_;
  Buffer staging_in_;
  std::shared_ptr<OutputPool> pool_;
  OutputPool::Slab slab_;  // the one that the next batch's outputs go to

  Flight flight_;
  Batch batch_;                                 // of the flight: whoever owns that
  std::shared_ptr<const ServedBlock> running_;  // the weights that the lane reads

  std::atomic<size_t> staging_bytes_{0};
  std::atomic<size_t> workspace_bytes_{0};
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> batches_{0};
  std::atomic<int64_t> last_batch_tokens_{0};

  std::thread thread_;
};

}  // namespace fuseblock
