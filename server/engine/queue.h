// The queue: requests wait by block and kind of input, fair between tenants, by priority within a
// tenant, in order of arrival within a priority.
//
// Fairness is counted in tokens over all blocks: the tenant that was served least goes first, and a
// tenant that comes back from idleness starts level with the others. A batch is led by the request
// that is due and filled up with requests for the same block, again by the tenant served least.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/engine/admission.h"
#include "server/engine/engine.h"

namespace fuseblock {

inline constexpr int kPriorities = 4;

class BatchQueue;

// A request inside the engine. Times are on the engine's clock.
struct Entry {
  Request request;
  Engine::RequestId id = 0;
  BatchQueue* queue = nullptr;
  int64_t bytes = 0;
  absl::Time submitted;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Duration cost;       // what it was predicted to take of a lane when it was queued
  absl::Duration predicted;  // from `submitted` to its answer
  Ticket ticket;
  bool running = false;    // a lane has it
  bool cancelled = false;  // while it ran

  using Fifo = std::list<std::unique_ptr<Entry>>;

 private:
  friend class FairQueue;
  int64_t order_ = 0;
  int tenant_ = -1;
  Fifo::iterator place_;
  std::multimap<absl::Time, Entry*>::iterator expiry_;
};

// Requests that can share a batch: one block, one form of inputs. Owned by the block; known to the
// FairQueue only while something waits in it.
class BatchQueue {
 public:
  // `block` and `form` are the owner's, to tell its queues apart.
  explicit BatchQueue(int64_t batch_tokens_max, EngineBlock* block = nullptr, int form = 0)
      : batch_tokens_max_(batch_tokens_max), block_(block), form_(form) {}

  EngineBlock* block() const { return block_; }
  int form() const { return form_; }
  int64_t tokens() const { return tokens_; }
  int64_t requests() const { return requests_; }

 private:
  friend class FairQueue;
  struct PerTenant {
    std::array<Entry::Fifo, kPriorities> fifos;
    int64_t requests = 0;
  };

  const int64_t batch_tokens_max_;
  EngineBlock* const block_;
  const int form_;
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

  using Entries = std::vector<std::unique_ptr<Entry>>;
  using Eligible = absl::FunctionRef<bool(const BatchQueue&)>;

  // Precondition: entry->queue is set, and takes entries of that many tokens.
  void Push(std::unique_ptr<Entry> entry);

  // The next batch from the queues that are eligible: at most the queue's token limit, at least one
  // request, unless nothing is there. What has expired by `now` goes to *expired instead.
  void Take(Eligible eligible, absl::Time now, Entries* batch, Entries* expired);

  std::unique_ptr<Entry> Remove(Entry* entry);
  // Removes all whose deadline is not after `now`.
  Entries TakeExpired(absl::Time now);
  // Removes all that wait in such queues.
  Entries TakeAll(Eligible which);

  // The earliest deadline, or InfiniteFuture.
  absl::Time NextDeadline() const;
  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return bytes_; }
  bool empty() const { return active_.empty(); }

  // Lane time that will have been spent on others before a request of this tenant and priority gets
  // its turn: its own tenant's earlier requests, and of each other tenant at most as much.
  absl::Duration Ahead(const std::string& tenant, int priority) const;
  // Lane time that all queued requests were predicted to take.
  absl::Duration Backlog() const { return backlog_; }

 private:
  struct Tenant {
    std::string name;
    int64_t served = 0;  // tokens, counted from the queue's beginning
    int64_t requests = 0;
    std::array<absl::Duration, kPriorities> cost{};
  };

  int TenantOf(const std::string& name);
  // The tenant of that queue that was served least, leaving out those in `skip`; -1 for none.
  int LeastServed(const BatchQueue& queue, const std::vector<bool>& skip) const;
  static Entry* Head(const BatchQueue& queue, int tenant);
  BatchQueue* Leader(Eligible eligible) const;

  std::vector<BatchQueue*> active_;
  std::vector<Tenant> tenants_;  // by number; free where requests == 0
  std::map<std::string, int, std::less<>> tenant_numbers_;
  std::multimap<absl::Time, Entry*> deadlines_;  // of the entries that have one
  int64_t next_order_ = 0;
  int64_t level_ = 0;  // how much the tenant that is due has been served
  int64_t tokens_ = 0;
  int64_t bytes_ = 0;
  absl::Duration backlog_;
};

}  // namespace fuseblock
