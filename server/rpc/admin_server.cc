#include "server/rpc/admin_server.h"

#include <grpcpp/resource_quota.h>

#include "server/rpc/listen.h"

namespace fuseblock {
namespace {

// Calls at a time, waiting ones too: a caller that forgets its calls must not cost threads without
// end.
constexpr int kThreadsMax = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const std::string& address,
                                                                AdminService::Options options,
                                                                BlockRegistry& registry,
                                                                Shadow& shadow, Metrics& metrics) {
  std::unique_ptr<AdminServer> server(
      new AdminServer(std::move(options), registry, shadow, metrics));
  auto listening = Listen(address, [&](grpc::ServerBuilder& builder) {
    grpc::ResourceQuota quota("admin");
    quota.SetMaxThreads(kThreadsMax);
    builder.SetResourceQuota(quota);
    builder.RegisterService(&server->service_);
  });
  if (!listening.ok()) return listening.status();
  server->server_ = std::move(listening->server);
  server->address_ = std::move(listening->address);
  return server;
}

AdminServer::~AdminServer() { Shutdown(absl::Now()); }

void AdminServer::Shutdown(absl::Time deadline) {
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
  server_.reset();
}

}  // namespace fuseblock
