#include "server/rpc/call_terms.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

constexpr size_t kTenantBytesMax = 128;

// The last value under that key, or empty.
std::string_view Value(const grpc::CallbackServerContext& context, const char* key) {
  std::string_view value;
  const auto [begin, end] = context.client_metadata().equal_range(key);
  for (auto it = begin; it != end; ++it) value = {it->second.data(), it->second.size()};
  return value;
}

absl::Status BadMetadata(const char* key, const char* expected, std::string_view given) {
  return MakeError(Reason::kBadTensor,
                   absl::StrCat("metadata ", key, ": expected ", expected, ", got \"",
                                absl::string_view(given.data(), given.size()), "\""));
}

}  // namespace

absl::Status ReadTerms(const grpc::CallbackServerContext& context, CallTerms* terms) {
  terms->arrived = absl::Now();
  terms->deadline = DeadlineFrom(context.deadline());
  const std::string_view tenant = Value(context, "fuseblock-tenant");
  if (tenant.size() > kTenantBytesMax) {
    return BadMetadata("fuseblock-tenant", "at most 128 bytes", tenant);
  }
  terms->tenant = std::string(tenant);
  const std::string_view priority = Value(context, "fuseblock-priority");
  if (!priority.empty()) {
    if (priority.size() != 1 || priority[0] < '0' || priority[0] > '3') {
      return BadMetadata("fuseblock-priority", "0 to 3", priority);
    }
    terms->priority = priority[0] - '0';
  }
  return absl::OkStatus();
}

bool WantsTimings(const grpc::CallbackServerContext& context) {
  return Value(context, "fuseblock-timings") == "1";
}

}  // namespace fuseblock
