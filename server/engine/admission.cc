#include "server/engine/admission.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// A replica that goes away does not come back soon; another one answers at once.
constexpr absl::Duration kRetryWhenDraining = absl::Seconds(1);
constexpr absl::Duration kRetryMin = absl::Milliseconds(1);
constexpr absl::Duration kRetryMax = absl::Seconds(5);

// Half of what is queued is done by then, so the next attempt finds room.
absl::Duration RetryAfter(absl::Duration backlog) {
  return std::clamp(backlog / 2, kRetryMin, kRetryMax);
}

std::string Ms(absl::Duration duration) {
  return absl::StrCat(absl::ToDoubleMilliseconds(duration), " ms");
}

}  // namespace

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Release();
    admission_ = std::move(other.admission_);
    tokens_ = std::exchange(other.tokens_, 0);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Ticket::Release() {
  if (const std::shared_ptr<Admission> admission = std::move(admission_)) {
    admission->Return(tokens_, bytes_);
  }
}

Admission::Admission(const AdmissionLimits& limits,
                     std::function<void(const AdmissionUse&)> on_change)
    : limits_(limits), on_change_(std::move(on_change)) {}

absl::StatusOr<Ticket> Admission::Admit(const Arrival& arrival) {
  // Even a request without tokens takes a place: their number is bounded too.
  const int64_t tokens = std::max<int64_t>(arrival.tokens, 1);
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return MakeError(Reason::kDraining, "the server is draining", kRetryWhenDraining);
  if (arrival.deadline <= arrival.now) {
    return MakeError(Reason::kExpired, absl::StrCat("the deadline was past on arrival, by ",
                                                    Ms(arrival.now - arrival.deadline)));
  }
  if (arrival.tokens > limits_.request_tokens_max) {
    return MakeError(Reason::kTooLarge,
                     absl::StrCat("expected at most ", limits_.request_tokens_max,
                                  " tokens in a request, got ", arrival.tokens));
  }
  if (arrival.bytes > limits_.bytes_max) {
    return MakeError(Reason::kTooLarge,
                     absl::StrCat("expected at most ", limits_.bytes_max,
                                  " bytes of inputs and outputs, got ", arrival.bytes));
  }
  if (use_.tokens + tokens > limits_.tokens_max) {
    return MakeError(Reason::kQueueFull,
                     absl::StrCat("the queue is full: ", use_.tokens, " of ", limits_.tokens_max,
                                  " tokens are admitted, this request brings ", tokens),
                     RetryAfter(arrival.backlog));
  }
  if (use_.bytes + arrival.bytes > limits_.bytes_max) {
    return MakeError(Reason::kMemory,
                     absl::StrCat("no memory: ", use_.bytes, " of ", limits_.bytes_max,
                                  " bytes are admitted, this request needs ", arrival.bytes),
                     RetryAfter(arrival.backlog));
  }
  if (arrival.deadline - arrival.now < arrival.predicted) {
    const absl::Duration left = arrival.deadline - arrival.now;
    return MakeError(Reason::kDeadlineInfeasible,
                     absl::StrCat("the answer is expected in ", Ms(arrival.predicted),
                                  ", the deadline is in ", Ms(left)),
                     std::clamp(arrival.predicted - left, kRetryMin, kRetryMax));
  }
  use_.requests += 1;
  use_.tokens += tokens;
  use_.bytes += arrival.bytes;
  if (on_change_) on_change_(use_);
  return Ticket(shared_from_this(), tokens, arrival.bytes);
}

void Admission::Return(int64_t tokens, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  use_.requests -= 1;
  use_.tokens -= tokens;
  use_.bytes -= bytes;
  if (on_change_) on_change_(use_);
  if (use_.requests == 0) empty_.notify_all();
}

void Admission::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
}

bool Admission::AwaitEmpty(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  return empty_.wait_until(lock, end, [this] { return use_.requests == 0; });
}

void Admission::Detach() {
  std::lock_guard<std::mutex> lock(mutex_);
  on_change_ = nullptr;
}

AdmissionUse Admission::use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return use_;
}

}  // namespace fuseblock
