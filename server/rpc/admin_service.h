// fuseblock.v1.AdminService: what operators do to a running server. Its calls may take minutes, so
// they are ordinary blocking ones, on the admin server's own threads.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fuseblock/v1/admin_service.grpc.pb.h"
#include "server/config.h"
#include "server/engine/shadow.h"
#include "server/model/registry.h"
#include "server/observe/metrics.h"

namespace fuseblock {

struct DrainReport {
  bool complete = false;  // everything admitted was answered and its outputs taken
  absl::Duration took;
};

class AdminService final : public v1::AdminService::Service {
 public:
  struct Options {
    Config config;
    v1::RunRecord record;
    // Loads that revision (0: one more than the newest) of the model and publishes it; gives the
    // revision. Ends as CANCELLED soon after `cancelled` says so. Called from many threads.
    std::function<absl::StatusOr<int64_t>(const std::string& name, const ModelSettings& model,
                                          int64_t revision, const std::function<bool()>& cancelled)>
        load;
    // Asks for the drain and returns when it is over.
    std::function<DrainReport()> drain;
  };

  // What it is given must outlive it.
  AdminService(Options options, BlockRegistry& registry, Shadow& shadow, Metrics& metrics);

  grpc::Status LoadModel(grpc::ServerContext* context, const v1::LoadModelRequest* request,
                         v1::LoadModelResponse* response) override;
  grpc::Status UnloadModel(grpc::ServerContext* context, const v1::UnloadModelRequest* request,
                           v1::UnloadModelResponse* response) override;
  grpc::Status SetRevision(grpc::ServerContext* context, const v1::SetRevisionRequest* request,
                           v1::SetRevisionResponse* response) override;
  grpc::Status SetShadow(grpc::ServerContext* context, const v1::SetShadowRequest* request,
                         v1::SetShadowResponse* response) override;
  grpc::Status GetConfig(grpc::ServerContext* context, const v1::GetConfigRequest* request,
                         v1::GetConfigResponse* response) override;
  grpc::Status GetRunRecord(grpc::ServerContext* context, const v1::GetRunRecordRequest* request,
                            v1::GetRunRecordResponse* response) override;
  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     v1::DrainResponse* response) override;

 private:
  // A call's end, counted if it failed. block: what it was about, if it has a name.
  grpc::Status End(const absl::Status& status, std::string_view block,
                   grpc::ServerContext* context);
  absl::Status Load(const grpc::ServerContext& context, const v1::LoadModelRequest& request,
                    v1::LoadModelResponse* response);
  absl::Status Unload(const grpc::ServerContext& context, const v1::UnloadModelRequest& request,
                      v1::UnloadModelResponse* response);

  const Options options_;
  BlockRegistry& registry_;
  Shadow& shadow_;
  Metrics& metrics_;
};

}  // namespace fuseblock
