// The gRPC server on the admin port: AdminService and reflection.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/rpc/admin_service.h"

namespace fuseblock {

class AdminServer {
 public:
  // Listens at HOST:PORT (port 0 picks one) or unix:PATH; what it is given must outlive it.
  // UNAVAILABLE when the address can't be bound.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const std::string& address,
                                                            AdminService::Options options,
                                                            BlockRegistry& registry, Shadow& shadow,
                                                            Metrics& metrics);
  ~AdminServer();

  // With the port that was picked.
  const std::string& address() const { return address_; }

  // Lets calls in flight end until the deadline and cancels the rest. Returns when every call has
  // ended.
  void Shutdown(absl::Time deadline);

 private:
  AdminServer(AdminService::Options options, BlockRegistry& registry, Shadow& shadow,
              Metrics& metrics)
      : service_(std::move(options), registry, shadow, metrics) {}

  std::string address_;
  AdminService service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace fuseblock
