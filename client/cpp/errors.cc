// Statuses with their details, and calls' options.

#include "absl/strings/cord.h"
#include "client/cpp/encoded.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fuseblock::client {
namespace {

// Where a status carries a serialised google.rpc.Status.
constexpr char kDetailsUrl[] = "fuseblock/details";

absl::Status Make(int code, const std::string& message, const std::string& details) {
  absl::Status status(static_cast<absl::StatusCode>(code), message);
  if (!details.empty()) status.SetPayload(kDetailsUrl, absl::Cord(details));
  return status;
}

}  // namespace

absl::Status ErrorFrom(const grpc::Status& status) {
  return Make(status.error_code(), status.error_message(), status.error_details());
}

absl::Status ErrorFrom(const v1::StreamBlocksResponse& response) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  info.set_reason(response.reason());
  details.add_details()->PackFrom(info);
  if (response.retry_after_ms() > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(response.retry_after_ms() / 1000);
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>(response.retry_after_ms() % 1000 * 1000000));
    details.add_details()->PackFrom(retry);
  }
  return Make(response.code(), response.message(), details.SerializeAsString());
}

Error ErrorOf(const absl::Status& status) {
  Error error;
  error.code = status.code();
  error.message = std::string(status.message());
  const auto payload = status.GetPayload(kDetailsUrl);
  google::rpc::Status details;
  if (!payload.has_value() || !details.ParseFromString(std::string(*payload))) return error;
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info)) error.reason = info.reason();
    if (detail.UnpackTo(&retry)) {
      error.retry_after = absl::Seconds(retry.retry_delay().seconds()) +
                          absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  return error;
}

void ApplyOptions(const CallOptions& options, grpc::ClientContext& context) {
  if (options.timeout < absl::InfiniteDuration()) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + options.timeout));
  }
  if (options.priority != CallOptions().priority) {
    context.AddMetadata("fuseblock-priority", std::to_string(options.priority));
  }
  if (!options.tenant.empty()) context.AddMetadata("fuseblock-tenant", options.tenant);
  if (options.timings) context.AddMetadata("fuseblock-timings", "1");
}

}  // namespace fuseblock::client
