// What the engine decides, apart from threads and devices: who is admitted, what a lane runs next,
// and when a request has come to its end. Every time is an argument, so that tests run thousands of
// schedules on a simulated clock.
//
// A request ends once: answered when its last part is there, or refused, cancelled, expired or
// failed before. Whoever is handed an ended request answers it; nothing of it runs after that but
// what lanes already have, and that is dropped.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/admission.h"
#include "server/engine/cost_model.h"
#include "server/engine/lateness.h"
#include "server/engine/queue.h"

namespace fuseblock {

// Not thread-safe; the engine's lock guards it.
class Scheduler {
 public:
  // What would run a request: lanes that it can go to, how long until one of them is free, and what
  // its block costs there.
  struct Capacity {
    int64_t lanes = 1;
    absl::Duration wait;
    const CostModel* cost = nullptr;
  };

  explicit Scheduler(std::shared_ptr<Admission> admission) : admission_(std::move(admission)) {}

  // Gives the request its ticket, id and predicted cost. The refusals are Admission's; a refused
  // entry is as it was. What was admitted is queued or started.
  absl::Status Admit(const EntryPtr& entry, const Capacity& capacity, absl::Time now);
  void Queue(const EntryPtr& entry);
  // Without queueing, for a lane that is idle while nothing waits; nobody can cancel it.
  // Precondition: it is no longer than a batch.
  Part StartAtOnce(const EntryPtr& entry);

  using CostOf = absl::FunctionRef<const CostModel&(const BatchQueue&)>;

  // The next batch for a lane that takes from the queues that are eligible, and on which a queue's
  // batches cost that; empty when there is nothing. What has expired by `now` ends first, in
  // *expired, and so does what its batch would answer too late: run all the same, it would make
  // those behind it late as well.
  void Take(FairQueue::Eligible eligible, CostOf cost, absl::Time now, Parts* batch,
            Entries* expired);

  // A lane is done with the part. True when the request has ended with this: all of it is there, or
  // the part failed, and then the request's status says so.
  //
  // Backends differ in bits: a request whose chunks came from two kinds of device starts over.
  bool Finish(const Part& part, PartResult result, absl::Time now);

  // For parts that a lane has, or had, while another one is to run them: ends the requests whose
  // deadline has come, and adds them to *expired.
  void ExpireTaken(const Parts& parts, absl::Time now, Entries* expired);
  // And before that other one runs them: by part, whether its request still waits for it. What is
  // left out is done with, as by Finish.
  std::vector<bool> StillWanted(const Parts& parts);

  // Ends it; null for an id that is unknown, has ended or was started at once.
  EntryPtr Cancel(Engine::RequestId id);
  Entries TakeExpired(absl::Time now);
  // Ends all of which something waits in such queues.
  Entries TakeAll(FairQueue::Eligible which);

  const FairQueue& queue() const { return queue_; }
  // Queued, or running after it was.
  size_t requests() const { return entries_.size(); }

 private:
  void End(Entry& entry);
  Entries End(Entries removed);

  const std::shared_ptr<Admission> admission_;
  FairQueue queue_;
  Lateness lateness_;
  std::unordered_map<Engine::RequestId, EntryPtr> entries_;  // as requests() counts them
  Engine::RequestId next_id_ = 1;
};

}  // namespace fuseblock
