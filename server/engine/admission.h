// Admission: what the engine takes in is bounded in tokens, bytes and requests, over all, for each
// block and for each tenant, and what it refuses has a reason of its own. A Ticket holds a
// request's share of these budgets from Submit until its outputs have been released, or until it is
// refused, whatever becomes of it in between.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace fuseblock {

// What may be admitted at a time, from arrival to the end of the answer.
struct Budget {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  int64_t tokens_max = kNoLimit;  // a request of 0 tokens counts as 1
  int64_t bytes_max = kNoLimit;   // of inputs and outputs
  int64_t requests_max = kNoLimit;

  bool operator==(const Budget&) const = default;
};

struct AdmissionLimits {
  Budget all;
  int64_t request_tokens_max = Budget::kNoLimit;  // of one request
  Budget tenant;                                  // of each tenant that `tenants` does not name
  std::map<std::string, Budget> tenants;
};

struct AdmissionUse {
  int64_t requests = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;
};

// A budget and what is held of it. Admission's lock guards the use.
struct BudgetAccount {
  std::string name;  // "the budget of m.layers.0.mlp", for messages
  Budget budget;
  AdmissionUse use;
};

// A tenant that has a budget, and what is held of it.
struct TenantStatus {
  std::string name;
  AdmissionUse use;
  Budget budget;
};

// What is known of a request when it comes. Times are on the engine's clock.
struct Arrival {
  int64_t tokens = 0;
  int64_t bytes = 0;  // of its inputs and outputs
  std::string tenant;
  std::shared_ptr<BudgetAccount> block;  // null: bounded by what bounds all
  absl::Time now;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Duration predicted;  // until its answer
  absl::Duration backlog;    // until what was admitted before it is done
};

class Admission;

// Move-only; gives the budget back when it is destroyed or assigned to.
class Ticket {
 public:
  Ticket() = default;
  Ticket(Ticket&& other) noexcept { *this = std::move(other); }
  Ticket& operator=(Ticket&& other) noexcept;
  ~Ticket() { Release(); }

  void Release();

 private:
  friend class Admission;

  std::shared_ptr<Admission> admission_;
  AdmissionUse held_;
  std::shared_ptr<BudgetAccount> block_, tenant_;  // null: has no budget of its own
};

// Thread-safe. Shared, because tickets may outlive the engine in the hands of a slow transport.
class Admission : public std::enable_shared_from_this<Admission> {
 public:
  // on_change is called with the use after each change, under the lock, so that a gauge shows the
  // newest.
  explicit Admission(AdmissionLimits limits,
                     std::function<void(const AdmissionUse&)> on_change = {});

  // Refusals, in this order: DRAINING, EXPIRED, TOO_LARGE (it could never be admitted), QUEUE_FULL
  // (tokens or requests, of all or of the block), MEMORY (bytes, likewise), QUOTA (the tenant's),
  // DEADLINE_INFEASIBLE.
  absl::StatusOr<Ticket> Admit(const Arrival& arrival);

  // From now on everything is refused as DRAINING.
  void Close();
  // Waits until nothing is admitted any more; false when the time came first.
  bool AwaitEmpty(absl::Duration timeout);
  // No call of on_change after this.
  void Detach();

  AdmissionUse use() const;
  // Of a tenant that has something admitted and a budget; zero of any other.
  AdmissionUse UseOf(const std::string& tenant) const;
  // At most that many of those with a budget that have something admitted or are configured by
  // name, the most tokens first. *count: how many there are.
  std::vector<TenantStatus> BusiestTenants(size_t max, size_t* count) const;

 private:
  friend class Ticket;
  std::shared_ptr<BudgetAccount> TenantOf(const std::string& name);
  void Return(const Ticket& ticket);

  const AdmissionLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::function<void(const AdmissionUse&)> on_change_;
  BudgetAccount all_;
  // By name, of the tenants of which something is admitted; a client that makes names up makes no
  // more of them than it has requests here.
  std::map<std::string, std::shared_ptr<BudgetAccount>> tenants_;
  bool closed_ = false;
};

}  // namespace fuseblock
