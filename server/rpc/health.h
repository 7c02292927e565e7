// grpc.health.v1: "" is the server, a block's name is that block. A block serves when it is loaded,
// a device can answer it and the server does not drain; the server serves from the end of its
// loading until it drains, as long as any of its blocks can be answered.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/engine/engine.h"
#include "server/model/registry.h"

namespace fuseblock {

class HealthWatch;

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  using State = grpc::health::v1::HealthCheckResponse::ServingStatus;
  enum class Phase { kStarting, kServing, kDraining };

  // Both must outlive it.
  HealthService(const Engine& engine, const BlockRegistry& registry)
      : engine_(engine), registry_(registry) {}

  // Each tells the watchers whom it concerns, once, if what they saw last is no longer so.
  void SetPhase(Phase phase);
  void BlockChanged(const std::string& name);
  void DevicesChanged();
  // Ends every watch, after what it has still to say; later ones end at once.
  void EndWatches();

  // What Check answers; SERVICE_UNKNOWN for a name that is not served.
  State StateOf(const std::string& service) const;

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::health::v1::HealthListRequest* request,
                                 grpc::health::v1::HealthListResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  friend class HealthWatch;

  // These with the lock held.
  State Evaluate(const std::string& service) const;
  bool BlockServes(const BlockStatus& block) const;
  void Tell(const std::string& service);
  void TellAll();

  void Forget(HealthWatch* watch);

  const Engine& engine_;
  const BlockRegistry& registry_;
  mutable std::mutex mutex_;  // guards what follows
  Phase phase_ = Phase::kStarting;
  bool ended_ = false;
  std::map<std::string, std::set<HealthWatch*>> watches_;
};

}  // namespace fuseblock
