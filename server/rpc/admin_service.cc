#include "server/rpc/admin_service.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status.h"
#include "server/observe/log.h"
#include "server/reason.h"
#include "server/rpc/status.h"

namespace fuseblock {
namespace {

// Nobody waits for the last request of a revision to the millisecond.
constexpr absl::Duration kReleasePoll = absl::Milliseconds(1);

// A loader's error with the reason that it has on this port.
absl::Status WithReason(const absl::Status& status) {
  if (status.ok() || absl::IsCancelled(status)) return status;
  const Reason reason = ReasonOf(status);
  if (reason != Reason::kInternal && reason != Reason::kBadTensor) return status;
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
      return MakeError(Reason::kBadArgument, message);
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      return MakeError(Reason::kConflict, message);
    case absl::StatusCode::kResourceExhausted:
      return MakeError(Reason::kMemory, message, absl::Seconds(1));
    default:
      return status;
  }
}

// The revision, or 0 for an empty text.
absl::StatusOr<int64_t> RevisionFrom(const std::string& text) {
  if (text.empty()) return 0;
  if (const std::optional<int64_t> revision = ParseRevision(text)) return *revision;
  return MakeError(
      Reason::kBadArgument,
      absl::StrCat("revision: expected a positive integer in decimal, got \"", text, "\""));
}

// The model as the configuration has it, changed by what the request says; checked as a
// configuration is.
absl::StatusOr<ModelSettings> ModelFrom(const v1::LoadModelRequest& request, Config config) {
  if (!IsModelName(request.model())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model: expected a name of letters, digits, '_' and '-', got \"", request.model(), "\""));
  }
  const std::pair<const char*, const std::string&> given[] = {{"path", request.path()},
                                                              {"dtype", request.dtype()},
                                                              {"rounding", request.rounding()},
                                                              {"layers", request.layers()},
                                                              {"parts", request.parts()}};
  for (const auto& [key, value] : given) {
    if (value.empty()) continue;
    const std::string name = absl::StrCat("models.", request.model(), ".", key);
    FUSEBLOCK_RETURN_IF_ERROR(ApplySetting(name, value, config));
  }
  const ModelSettings model = config.models[request.model()];
  if (model.path.empty()) {
    return absl::InvalidArgumentError("path: expected the checkpoint's folder, got \"\"");
  }
  return model;
}

absl::StatusOr<ShadowRule> RuleFrom(const v1::SetShadowRequest& request) {
  ShadowRule rule;
  rule.name = request.name();
  rule.share = request.share();
  FUSEBLOCK_ASSIGN_OR_RETURN(rule.revision, RevisionFrom(request.revision()));
  rule.backend = request.backend();
  return rule;
}

int64_t WeightBytes(const ServedBlock& block) {
  int64_t bytes = 0;
  for (const auto& on_device : block.blocks) {
    bytes += static_cast<int64_t>(on_device->weight_bytes());
  }
  return bytes;
}

}  // namespace

AdminService::AdminService(Options options, BlockRegistry& registry, Shadow& shadow,
                           Metrics& metrics)
    : options_(std::move(options)), registry_(registry), shadow_(shadow), metrics_(metrics) {}

grpc::Status AdminService::End(const absl::Status& status, std::string_view block,
                               grpc::ServerContext* context) {
  if (!status.ok()) metrics_.CountError(ReasonOf(status));
  return ToGrpcStatus(status, block, context);
}

absl::Status AdminService::Load(const grpc::ServerContext& context,
                                const v1::LoadModelRequest& request,
                                v1::LoadModelResponse* response) {
  const absl::Time begin = absl::Now();
  FUSEBLOCK_ASSIGN_OR_RETURN(const int64_t asked, RevisionFrom(request.revision()));
  FUSEBLOCK_ASSIGN_OR_RETURN(const ModelSettings model, ModelFrom(request, options_.config));
  FUSEBLOCK_ASSIGN_OR_RETURN(
      const int64_t revision,
      options_.load(request.model(), model, asked, [&context] { return context.IsCancelled(); }));
  response->set_revision(absl::StrCat(revision));
  int64_t bytes = 0;
  for (const BlockStatus& status : registry_.List(request.model() + ".")) {
    const auto block = registry_.Find(status.name, response->revision());
    if (!block.ok()) continue;
    response->set_blocks(response->blocks() + 1);
    if (!(*block)->blocks.empty()) {
      bytes += static_cast<int64_t>((*block)->blocks.front()->weight_bytes());
    }
  }
  response->set_weight_bytes(bytes);
  response->set_seconds(absl::ToDoubleSeconds(absl::Now() - begin));
  return absl::OkStatus();
}

// Holds what was taken until nobody else does, so that gigabytes are freed here and not on a lane
// or on a thread of the transport.
absl::Status AdminService::Unload(const grpc::ServerContext& context,
                                  const v1::UnloadModelRequest& request,
                                  v1::UnloadModelResponse* response) {
  const absl::Time begin = absl::Now();
  FUSEBLOCK_ASSIGN_OR_RETURN(const int64_t revision, RevisionFrom(request.revision()));
  FUSEBLOCK_ASSIGN_OR_RETURN(BlockRegistry::Blocks taken,
                             registry_.Unload(request.name(), revision));
  response->set_blocks(static_cast<int32_t>(taken.size()));
  for (const auto& block : taken) {
    response->set_weight_bytes(response->weight_bytes() + WeightBytes(*block));
  }
  const auto alone = [](const auto& block) { return block.use_count() == 1; };
  while (!std::all_of(taken.begin(), taken.end(), alone) && !context.IsCancelled()) {
    std::this_thread::sleep_for(absl::ToChronoMicroseconds(kReleasePoll));
  }
  const bool waited = std::all_of(taken.begin(), taken.end(), alone);
  taken.clear();
  registry_.Forget(request.name());
  response->set_seconds(absl::ToDoubleSeconds(absl::Now() - begin));
  Log(LogLevel::kInfo, "unloaded", absl::StrCat("unloaded ", request.name()),
      {{"name", request.name()},
       {"revision", request.revision().empty() ? "all" : request.revision()},
       {"blocks", response->blocks()},
       {"seconds", response->seconds()}});
  if (waited) return absl::OkStatus();
  return absl::CancelledError("unloaded, but requests under way still held it");
}

grpc::Status AdminService::LoadModel(grpc::ServerContext* context,
                                     const v1::LoadModelRequest* request,
                                     v1::LoadModelResponse* response) {
  return End(WithReason(Load(*context, *request, response)), "", context);
}

grpc::Status AdminService::UnloadModel(grpc::ServerContext* context,
                                       const v1::UnloadModelRequest* request,
                                       v1::UnloadModelResponse* response) {
  return End(Unload(*context, *request, response), request->name(), context);
}

grpc::Status AdminService::SetRevision(grpc::ServerContext* context,
                                       const v1::SetRevisionRequest* request,
                                       v1::SetRevisionResponse* response) {
  absl::StatusOr<int64_t> count = RevisionFrom(request->revision());
  if (count.ok()) count = registry_.SetCurrent(request->name(), *count);
  if (count.ok()) {
    response->set_blocks(static_cast<int32_t>(*count));
    Log(LogLevel::kInfo, "revision_set", absl::StrCat("another revision of ", request->name()),
        {{"name", request->name()},
         {"revision", request->revision().empty() ? "newest" : request->revision()},
         {"blocks", *count}});
  }
  return End(count.status(), request->name(), context);
}

grpc::Status AdminService::SetShadow(grpc::ServerContext* context,
                                     const v1::SetShadowRequest* request, v1::SetShadowResponse*) {
  const absl::StatusOr<ShadowRule> rule = RuleFrom(*request);
  const absl::Status status = rule.ok() ? shadow_.Set(*rule) : rule.status();
  if (status.ok()) {
    Log(LogLevel::kInfo, "shadow_set", absl::StrCat("shadow runs of ", request->name()),
        {{"name", request->name()},
         {"share", request->share()},
         {"revision", request->revision()},
         {"backend", request->backend()}});
  }
  return End(WithReason(status), request->name(), context);
}

grpc::Status AdminService::GetConfig(grpc::ServerContext*, const v1::GetConfigRequest*,
                                     v1::GetConfigResponse* response) {
  response->set_toml(PrintConfig(options_.config));
  return grpc::Status::OK;
}

grpc::Status AdminService::GetRunRecord(grpc::ServerContext*, const v1::GetRunRecordRequest*,
                                        v1::GetRunRecordResponse* response) {
  *response->mutable_record() = options_.record;
  return grpc::Status::OK;
}

grpc::Status AdminService::Drain(grpc::ServerContext*, const v1::DrainRequest*,
                                 v1::DrainResponse* response) {
  const DrainReport report = options_.drain();
  response->set_complete(report.complete);
  response->set_seconds(absl::ToDoubleSeconds(report.took));
  return grpc::Status::OK;
}

}  // namespace fuseblock
