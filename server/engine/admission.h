// Admission: what the engine takes in is bounded in tokens and in bytes, and what it refuses has a
// reason of its own. A Ticket holds a request's share of the budget from Submit until its outputs
// have been released, whatever becomes of it in between.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace fuseblock {

struct AdmissionLimits {
  int64_t tokens_max = 0;          // admitted at a time; a request of 0 tokens counts as 1
  int64_t bytes_max = 0;           // of inputs and outputs admitted at a time
  int64_t request_tokens_max = 0;  // of one request
};

struct AdmissionUse {
  int64_t requests = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;
};

// What is known of a request when it comes. Times are on the engine's clock.
struct Arrival {
  int64_t tokens = 0;
  int64_t bytes = 0;  // of its inputs and outputs
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
  Ticket(std::shared_ptr<Admission> admission, int64_t tokens, int64_t bytes)
      : admission_(std::move(admission)), tokens_(tokens), bytes_(bytes) {}

  std::shared_ptr<Admission> admission_;
  int64_t tokens_ = 0;
  int64_t bytes_ = 0;
};

// Thread-safe. Shared, because tickets may outlive the engine in the hands of a slow transport.
class Admission : public std::enable_shared_from_this<Admission> {
 public:
  // on_change is called with the use after each change, under the lock, so that a gauge shows the
  // newest.
  explicit Admission(const AdmissionLimits& limits,
                     std::function<void(const AdmissionUse&)> on_change = {});

  // Refusals, in this order: DRAINING, EXPIRED, TOO_LARGE (it could never be admitted), QUEUE_FULL
  // (tokens), MEMORY (bytes), DEADLINE_INFEASIBLE.
  absl::StatusOr<Ticket> Admit(const Arrival& arrival);

  // From now on everything is refused as DRAINING.
  void Close();
  // Waits until nothing is admitted any more; false when the time came first.
  bool AwaitEmpty(absl::Duration timeout);
  // No call of on_change after this.
  void Detach();

  AdmissionUse use() const;

 private:
  friend class Ticket;
  void Return(int64_t tokens, int64_t bytes);

  const AdmissionLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::function<void(const AdmissionUse&)> on_change_;
  AdmissionUse use_;
  bool closed_ = false;
};

}  // namespace fuseblock
