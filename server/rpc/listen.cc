#include "server/rpc/listen.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/observe/log.h"

namespace fuseblock {
namespace {

// gRPC's own log would break the structured log's lines. Most of it is about single connections;
// its errors say why it is about to end the process.
void LogFromGrpc(gpr_log_func_args* line) {
  const bool error = line->severity == GPR_LOG_SEVERITY_ERROR;
  Log(error ? LogLevel::kError : LogLevel::kDebug, "grpc", line->message,
      {{"file", line->file}, {"line", line->line}});
}

}  // namespace

absl::StatusOr<Listening> Listen(const std::string& address,
                                 absl::FunctionRef<void(grpc::ServerBuilder& builder)> set_up) {
  // Before the first builder, which takes the plugins that there are.
  static const bool once = [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    gpr_set_log_function(LogFromGrpc);
    return true;
  }();
  (void)once;
  grpc::ServerBuilder builder;
  set_up(builder);
  // A second server on the same port must fail, not share its connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  Listening listening{builder.BuildAndStart(), address};
  if (listening.server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(address, ": cannot listen there"));
  }
  if (!absl::StartsWith(address, "unix:")) {
    listening.address = absl::StrCat(address.substr(0, address.rfind(':') + 1), port);
  }
  return listening;
}

}  // namespace fuseblock
