// The queue: requests wait by block and kind of input, fair between tenants, by priority within a
// tenant, in order of arrival within a priority.
//
// Between tenants it is start-time fair queueing over tokens: each tenant has an account of what it
// was served, over all blocks; the one served least goes first, and one that comes back from
// idleness starts level with the least of those that wait. (Deficit round robin comes to the same
// share, but a tenant's turn comes only once a round, and its quantum must be as large as the
// largest request.) A batch is led by the request that is due and filled up with requests for the
// same block, again of the tenant served least, but none that is ahead by more than a batch of one
// that waits there and whose request does not fit. So with B the tokens of the largest batch, the
// accounts of two tenants that wait for one block are never more than 2 B apart, and neither is
// served more than 4 B beyond the other, however long they wait. Whoever falls further behind,
// because it asks for little or for a block whose device is slow, gives up the rest of its claim.
//
// A request longer than a batch leaves in chunks, each of a largest batch's tokens but the last.
// While a lane has a chunk of it, the others of its tenant and priority go first, and when no lane
// has one any more, it goes to the back of its line. So while a request waits, of each other one
// of its tenant and priority and block at most one chunk begins. With nobody else there, chunks run
// side by side on all lanes.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/engine/entry.h"

namespace fuseblock {

inline constexpr int kPriorities = 4;

struct EngineBlock;

// Requests that can share a batch: one block, one form of inputs. Owned by the block; known to the
// FairQueue only while something waits in it.
class BatchQueue {
 public:
  // `block` and `form` are the owner's, to tell its queues apart.
  explicit BatchQueue(int64_t batch_tokens_max, EngineBlock* block = nullptr, int form = 0,
                      std::shared_ptr<BudgetAccount> budget = nullptr)
      : batch_tokens_max_(batch_tokens_max),
        block_(block),
        form_(form),
        budget_(std::move(budget)) {}

  EngineBlock* block() const { return block_; }
  int form() const { return form_; }
  // What the block may have admitted, in all its queues; null for no more than the server.
  const std::shared_ptr<BudgetAccount>& budget() const { return budget_; }
  int64_t batch_tokens_max() const { return batch_tokens_max_; }
  int64_t tokens() const { return tokens_; }
  int64_t requests() const { return requests_; }

 private:
  friend class FairQueue;
  struct Line {
    std::list<EntryPtr> waiting;
    std::list<EntryPtr> continuing;  // a lane has a chunk of them
  };
  struct PerTenant {
    std::array<Line, kPriorities> lines;
    int64_t requests = 0;
  };

  const int64_t batch_tokens_max_;
  EngineBlock* const block_;
  const int form_;
  const std::shared_ptr<BudgetAccount> budget_;
  std::map<int, PerTenant> tenants_;  // by FairQueue's number
  int64_t tokens_ = 0;
  int64_t requests_ = 0;
  int active_at_ = -1;  // where in FairQueue::active_
};

// Not thread-safe; the engine's lock guards it.
class FairQueue {
 public:
  // Above that many at a time, tenants share their turns with others.
  static constexpr int kTenantsMax = 256;

  using Eligible = absl::FunctionRef<bool(const BatchQueue&)>;

  // Precondition: entry->queue is set.
  void Push(EntryPtr entry);

  // The next batch from the queues that are eligible: at most the queue's token limit, at least one
  // part, unless nothing is there. Precondition: what has expired was taken out. The accounts of
  // its tenants are settled by Settle, when it is known what of it will run.
  void Take(Eligible eligible, Parts* batch);
  // Of what was just taken, a part that will not run: done with, and not charged to its tenant.
  void GiveBack(const Part& part);
  // What is left runs: bounds what those who wait may claim, and moves the level on.
  void Settle(const Parts& batch);
  // A lane is done with a part of that entry.
  void Finished(Entry* entry);
  // Puts an entry of which chunks were taken back as it came, its results dropped, and those of the
  // parts that lanes still have: they are of an earlier round.
  void StartOver(const EntryPtr& entry);

  // Whether something of it waits.
  static bool Waits(const Entry& entry) { return entry.fifo_ != nullptr; }
  // Takes out what waits of it.
  EntryPtr Remove(Entry* entry);
  // Removes all whose deadline is not after `now`.
  Entries TakeExpired(absl::Time now);
  // Removes all that wait in such queues.
  Entries TakeAll(Eligible which);

  // The earliest deadline, or InfiniteFuture.
  absl::Time NextDeadline() const;
  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return bytes_; }
  bool empty() const { return active_.empty(); }
  // Calls visit with each queue that something waits in.
  void ForEachWaiting(absl::FunctionRef<void(const BatchQueue&)> visit) const {
    for (const BatchQueue* waiting : active_) visit(*waiting);
  }

  // Lane time that will have been spent on others before a request of this tenant and priority,
  // which takes so many chunks, gets to its last one: at most as many chunks of each of its own
  // tenant's requests, and of each other tenant at most as much as of its own.
  absl::Duration Ahead(const std::string& tenant, int priority, int64_t chunks) const;
  // Lane time that all that waits was predicted to take.
  absl::Duration Backlog() const { return backlog_; }

 private:
  struct Tenant {
    std::string name;
    int64_t served = 0;  // tokens, counted from the queue's beginning
    int64_t requests = 0;
    // Of what waits: all of it, and of each request the next part.
    std::array<absl::Duration, kPriorities> cost{}, next_cost{};
  };

  int TenantOf(const std::string& name);
  // Adds what waits of the entry to the sums, or (-1) takes it out of them.
  void Count(const Entry& entry, int sign);
  void Insert(EntryPtr entry);
  static bool MoreUrgent(const Entry& a, const Entry& b);
  bool Due(const Entry& a, const Entry& b) const;
  static Entry* Head(const BatchQueue::PerTenant& tenant);
  // The queue with the request that is due: of the tenant served least, its most urgent, its
  // oldest.
  BatchQueue* Leader(Eligible eligible);
  // What fills that queue's batch up, of the tenants that are not to be skipped; null for nothing.
  Entry* Next(const BatchQueue& queue, const std::vector<bool>& skip) const;
  Part TakePart(Entry* head);

  std::vector<BatchQueue*> active_;
  std::vector<Tenant> tenants_;  // by number; free where requests == 0
  std::map<std::string, int, std::less<>> tenant_numbers_;
  std::vector<Entry*> heads_;                    // by tenant: Leader's
  std::multimap<absl::Time, Entry*> deadlines_;  // of the entries that have one
  int64_t next_order_ = 0;
  int64_t level_ = 0;  // the least that one who waits was served
  int64_t tokens_ = 0;
  int64_t bytes_ = 0;
  absl::Duration backlog_;
};

}  // namespace fuseblock
