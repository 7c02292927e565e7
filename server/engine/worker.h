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

  const Lane& lane() const { return *lane_; }
  size_t index() const { return index_; }  // among the device's lanes

  // On the worker's own thread, between two batches: Engine::Impl::RunOnLane.
  // Grows staging and lane to at least that. RESOURCE_EXHAUSTED, with the sum shown, leaves all as
  // it was.
  absl::Status Reserve(const LaneBytes& bytes);
  // The block's launches for that form and token bucket as a graph, into *graphs, as Lane::Capture.
  absl::Status Capture(const EngineBlock& block, int form, int bucket,
                       std::shared_ptr<BlockGraphs>* graphs);
  // What a batch of so many tokens, all zeros, takes at best of a few runs, of which none begins
  // after `until`. Needs what Reserve gave.
  absl::StatusOr<absl::Duration> TimeOf(EngineBlock& block, int64_t tokens, absl::Time until);

  // Takes the batch (none for a probe or a task) away from a lane that is overdue. False when no
  // lane is.
  bool GiveUp(absl::Time now, Batch* batch);
  bool given_up() const { return flight_.given_up(); }
  absl::Time overdue_at() const { return flight_.overdue_at(); }
  // What Reserve gave so far.
  LaneBytes bytes() const;
  size_t staging_bytes() const { return staging_bytes_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  LaneStatus status() const { return {busy_, batches_, last_batch_tokens_}; }

  // Guarded by the engine's lock.
  absl::Time busy_until = absl::InfinitePast();  // when the running batch should be done
  int64_t probe_due = 0;                         // the round in which it has to be probed; 0: none
  int lends = 0;  // batches whose inputs lie here and are another worker's: the staging must wait
  std::shared_ptr<Engine::Impl::Task> task;  // that it has, or is to do next

 private:
  using Work = Engine::Impl::Work;

  absl::Status Grow(const LaneBytes& wanted);
  void Loop();
  bool Do(Work& work);
  bool RunBatch(absl::Time started, absl::Duration patience);
  void RunTakeOver(Engine::Impl::TakeOver& takeover);
  bool RunTask(Work& work);
  bool Probe(int64_t round, absl::Duration patience);
  bool LandedLate(Flight::Owner owner);
  void Deliver(Batch& batch, Timings timings, absl::Time started);
  void Observe(const Batch& batch, int64_t padded_rows, absl::Duration took);
  std::byte* TakeOutputs(const Batch& batch);
  void Keep(const Batch& batch, size_t part, PartResult* result);

  Engine::Impl& engine_;
  const size_t device_;
  const size_t index_;
  const std::unique_ptr<Lane> lane_;
  MemoryGauge* const gathered_;
  MemoryGauge* const sent_;
  MemoryGauge* const workspace_;
  LaneMetrics* const metrics_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool left_ = true;  // the thread
  bool orphaned_ = false;
  LaneBytes bytes_;

  // The thread's.
  Buffer staging_in_;
  std::shared_ptr<OutputPool> pool_;
  OutputPool::Slab slab_;               // the one that the next batch's outputs go to
  std::shared_ptr<std::byte> outputs_;  // where the running batch's go: mostly the slab

  Flight flight_;
  Batch batch_;                                  // of the flight: whoever owns that
  std::shared_ptr<const ServedBlock> running_;   // the weights that the lane reads
  std::shared_ptr<Engine::Impl::Task> in_task_;  // that the lane is busy with, and keeps

  std::atomic<size_t> staging_bytes_{0};
  std::atomic<size_t> workspace_bytes_{0};
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> batches_{0};
  std::atomic<int64_t> last_batch_tokens_{0};

  std::thread thread_;
};

}  // namespace fuseblock
