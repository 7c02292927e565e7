#include "server/rpc/status.h"

#include <grpcpp/server_context.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// Clients take 8 KiB of metadata by default, and the message travels twice, once percent-encoded.
constexpr size_t kMessageBytesMax = 1024;

// Cuts on a character's boundary.
std::string Bounded(absl::string_view text) {
  if (text.size() <= kMessageBytesMax) return std::string(text);
  size_t end = kMessageBytesMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

}  // namespace

ErrorText TextOf(const absl::Status& status) {
  const ReasonTraits& traits = Traits(ReasonOf(status));
  ErrorText text;
  text.code = traits.code;
  text.message = Bounded(status.message());
  text.reason = std::string(traits.name);
  const absl::Duration retry_after = RetryAfterOf(status);
  if (retry_after > absl::ZeroDuration()) {
    text.retry_after_ms = absl::ToInt64Milliseconds(absl::Ceil(retry_after, absl::Milliseconds(1)));
  }
  return text;
}

grpc::Status ToGrpcStatus(const absl::Status& status, std::string_view block,
                          grpc::ServerContextBase* context) {
  if (status.ok()) return grpc::Status::OK;
  const ErrorText text = TextOf(status);
  google::rpc::Status details;
  details.set_code(static_cast<int>(text.code));
  details.set_message(text.message);
  google::rpc::ErrorInfo info;
  info.set_reason(text.reason);
  info.set_domain("fuseblock");
  if (!block.empty()) (*info.mutable_metadata())["block"] = std::string(block);
  details.add_details()->PackFrom(info);
  if (text.retry_after_ms > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(text.retry_after_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>(text.retry_after_ms % 1000 * 1000000));
    details.add_details()->PackFrom(retry);
    context->AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(text.retry_after_ms));
  }
  return grpc::Status(static_cast<grpc::StatusCode>(text.code), text.message,
                      details.SerializeAsString());
}

}  // namespace fuseblock
