// What the serving port and the admin port have in common: reflection, the log, the address.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace fuseblock {

struct Listening {
  std::unique_ptr<grpc::Server> server;
  std::string address;  // with the port that was picked
};

// Starts the services that `set_up` gives the builder, with server reflection, at HOST:PORT (port 0
// picks one) or unix:PATH. UNAVAILABLE when the address can't be bound.
absl::StatusOr<Listening> Listen(const std::string& address,
                                 absl::FunctionRef<void(grpc::ServerBuilder& builder)> set_up);

}  // namespace fuseblock
