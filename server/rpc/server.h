// The gRPC server on the serving port: BlockService, health and reflection.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/rpc/block_service.h"
#include "server/rpc/health.h"

namespace fuseblock {

class KeepWarm;

class RpcServer {
 public:
  struct Options {
    std::string address;  // HOST:PORT (port 0 picks one) or unix:PATH
    BlockService::Options blocks;
  };

  // Listens; what it is given must outlive it. UNAVAILABLE when the address can't be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const Options& options, Engine& engine,
                                                          const BlockRegistry& registry,
                                                          Metrics& metrics, Shadow& shadow);
  ~RpcServer();

  // With the port that was picked.
  const std::string& address() const { return address_; }
  HealthService& health() { return health_; }

  // Stops listening, ends streams and watches that are idle, lets calls in flight end until the
  // deadline and cancels the rest. Returns when every call has ended.
  void Shutdown(absl::Time deadline);

 private:
  RpcServer(const Options& options, Engine& engine, const BlockRegistry& registry, Metrics& metrics,
            Shadow& shadow);

  std::string address_;
  BlockService blocks_;
  HealthService health_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<KeepWarm> keep_warm_;
};

// What large messages want of a server's connections; the benchmark's echo has it too.
void SetTransportArguments(grpc::ServerBuilder& builder);

// Sets this process up: the allocator for large messages, of which every one would be a fresh
// mapping of zeroed pages, and mutexes without their debugging. Call it first thing in main.
void TuneProcess();

}  // namespace fuseblock
