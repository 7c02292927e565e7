// Errors as gRPC clients see them: the canonical code, a message, google.rpc.Status with ErrorInfo
// and RetryInfo in grpc-status-details-bin, and grpc-retry-pushback-ms where a retry can help.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace grpc {
class ServerContextBase;
}

namespace fuseblock {

// What an answer says of an error, wherever it is put.
struct ErrorText {
  absl::StatusCode code = absl::StatusCode::kInternal;
  std::string message;         // bounded, valid UTF-8
  std::string reason;          // "QUEUE_FULL"
  int64_t retry_after_ms = 0;  // rounded up; 0: no retry is advised
};
// Precondition: !status.ok().
ErrorText TextOf(const absl::Status& status);

// OK, or the error with its details; `block` goes into ErrorInfo.metadata unless it is empty. Adds
// the retry trailer to `context`.
grpc::Status ToGrpcStatus(const absl::Status& status, std::string_view block,
                          grpc::ServerContextBase* context);

}  // namespace fuseblock
