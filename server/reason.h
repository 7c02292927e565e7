// Why a request was refused or failed: the one table behind statuses, metrics and documents.
// A reason travels inside an absl::Status as a payload, so StatusOr carries it through every layer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace fuseblock {

enum class Reason {
  kQueueFull,
  kMemory,
  kQuota,
  kDeadlineInfeasible,
  kExpired,
  kDraining,
  kDeviceLost,
  kBlockNotFound,
  kBlockNotReady,
  kBadTensor,
  kTooLarge,
  kUnauthenticated,
  kPermissionDenied,
  kBadArgument,  // of the admin port: what was named can't be loaded or set
  kConflict,     // of the admin port: what there is does not allow it
  kCancelled,
  kInternal,
};

struct ReasonTraits {
  Reason reason;
  std::string_view name;   // ErrorInfo.reason: "QUEUE_FULL"
  std::string_view cause;  // the metrics' label: "queue_full"
  absl::StatusCode code;   // the canonical gRPC code
  bool retry;              // answers carry RetryInfo
  bool shed;               // counts in shed_total
};

const ReasonTraits& Traits(Reason reason);
absl::Span<const ReasonTraits> AllReasons();

// A status of the reason's code. retry_after: when a retry can succeed; kept only where the reason
// allows a retry, or for BLOCK_NOT_READY of a block that is loading.
absl::Status MakeError(Reason reason, std::string_view message,
                       absl::Duration retry_after = absl::ZeroDuration());

// The reason inside the status. A status without one has its code's own: INVALID_ARGUMENT is
// kBadTensor, CANCELLED is kCancelled, anything else is kInternal. Precondition: !status.ok().
Reason ReasonOf(const absl::Status& status);
// Zero when no retry is advised.
absl::Duration RetryAfterOf(const absl::Status& status);

}  // namespace fuseblock
