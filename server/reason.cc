#include "server/reason.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fuseblock {
namespace {

using Code = absl::StatusCode;

// In the enum's order, so that the table is indexed by it (a test checks).
constexpr std::array<ReasonTraits, 17> kReasons = {{
    // reason, name, cause, code, retry, shed
    {Reason::kQueueFull, "QUEUE_FULL", "queue_full", Code::kResourceExhausted, true, true},
    {Reason::kMemory, "MEMORY", "memory", Code::kResourceExhausted, true, true},
    {Reason::kQuota, "QUOTA", "quota", Code::kResourceExhausted, true, true},
    {Reason::kDeadlineInfeasible, "DEADLINE_INFEASIBLE", "deadline_infeasible",
     Code::kResourceExhausted, true, true},
    {Reason::kExpired, "EXPIRED", "expired", Code::kDeadlineExceeded, false, true},
    {Reason::kDraining, "DRAINING", "draining", Code::kUnavailable, true, true},
    {Reason::kDeviceLost, "DEVICE_LOST", "device_lost", Code::kUnavailable, true, true},
    {Reason::kBlockNotFound, "BLOCK_NOT_FOUND", "block_not_found", Code::kNotFound, false, false},
    {Reason::kBlockNotReady, "BLOCK_NOT_READY", "block_not_ready", Code::kFailedPrecondition, false,
     false},
    {Reason::kBadTensor, "BAD_TENSOR", "bad_tensor", Code::kInvalidArgument, false, false},
    {Reason::kTooLarge, "TOO_LARGE", "too_large", Code::kInvalidArgument, false, false},
    {Reason::kUnauthenticated, "UNAUTHENTICATED", "unauthenticated", Code::kUnauthenticated, false,
     false},
    {Reason::kPermissionDenied, "PERMISSION_DENIED", "permission_denied", Code::kPermissionDenied,
     false, false},
    {Reason::kBadArgument, "BAD_ARGUMENT", "bad_argument", Code::kInvalidArgument, false, false},
    {Reason::kConflict, "CONFLICT", "conflict", Code::kFailedPrecondition, false, false},
    {Reason::kCancelled, "CANCELLED", "cancelled", Code::kCancelled, false, false},
    {Reason::kInternal, "INTERNAL", "internal", Code::kInternal, false, false},
}};

constexpr char kReasonUrl[] = "fuseblock/reason";
constexpr char kRetryUrl[] = "fuseblock/retry_after_us";
// A refusal that may be retried always names a delay: a client must not spin.
constexpr absl::Duration kRetryAfterMin = absl::Milliseconds(1);

}  // namespace

const ReasonTraits& Traits(Reason reason) { return kReasons[static_cast<size_t>(reason)]; }

absl::Span<const ReasonTraits> AllReasons() { return kReasons; }

absl::Status MakeError(Reason reason, std::string_view message, absl::Duration retry_after) {
  const ReasonTraits& traits = Traits(reason);
  absl::Status status(traits.code, absl::string_view(message.data(), message.size()));
  status.SetPayload(kReasonUrl,
                    absl::Cord(absl::string_view(traits.name.data(), traits.name.size())));
  const bool loading = reason == Reason::kBlockNotReady && retry_after > absl::ZeroDuration();
  if (traits.retry || loading) {
    const absl::Duration delay = std::max(retry_after, kRetryAfterMin);
    status.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(absl::ToInt64Microseconds(delay))));
  }
  return status;
}

Reason ReasonOf(const absl::Status& status) {
  if (const auto payload = status.GetPayload(kReasonUrl); payload.has_value()) {
    const std::string name(*payload);
    for (const ReasonTraits& traits : kReasons) {
      if (traits.name == name) return traits.reason;
    }
  }
  switch (status.code()) {
    case Code::kInvalidArgument:
      return Reason::kBadTensor;
    case Code::kCancelled:
      return Reason::kCancelled;
    default:
      return Reason::kInternal;
  }
}

absl::Duration RetryAfterOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryUrl);
  int64_t us = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &us)) {
    return absl::ZeroDuration();
  }
  return absl::Microseconds(us);
}

}  // namespace fuseblock
