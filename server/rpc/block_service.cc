#include "server/rpc/block_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/block_info.h"
#include "server/rpc/call_terms.h"
#include "server/rpc/status.h"
#include "server/rpc/stream_call.h"

namespace fuseblock {
namespace {

// Of the trailers that every answer has, once made: gRPC takes strings. Never freed, since its
// threads may outlive what is.
const std::string& BackendKey() {
  static const auto& key = *new std::string("fuseblock-backend");
  return key;
}
const std::string& RevisionKey() {
  static const auto& key = *new std::string("fuseblock-revision");
  return key;
}

// One RunBlock. Lives until gRPC is done with the call: after Finish, and not before the service's
// method has returned it.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response, Engine& engine)
      : context_(context), response_(response), cancel_(engine) {}

  void Start(const BlockRunner& runner, const grpc::ByteBuffer* request) {
    CallTerms terms;
    absl::Status status = ReadTerms(*context_, &terms);
    deadline_ = terms.deadline;
    wants_timings_ = WantsTimings(*context_);
    auto message = RawMessage::From(*request);
    if (!message.ok()) {
      runner.CountError(message.status());
      return Finish(ToGrpcStatus(message.status(), "", context_));
    }
    // gRPC would hold the request's slices until the call ends; the runner holds them only until
    // they are gathered. The buffer is the call's own and nobody reads it again.
    const_cast<grpc::ByteBuffer*>(request)->Clear();
    WireRequest wire;
    status.Update(ParseWire((*message)->pieces, &wire));
    runner.Run(Rpc::kRunBlock, status, *std::move(message), wire, std::move(terms), cancel_,
               [this](const BlockAnswer& answer) { End(answer); });
  }

  void OnCancel() override {
    if (CancelledByClient(deadline_)) cancel_.Cancel();
  }
  void OnDone() override { delete this; }

 private:
  // Lets gRPC run OnDone and OnCancel on its polling thread. It would wake a thread of its executor
  // for each call otherwise, which takes longer than the call's own work; neither of them blocks.
  bool InternalInlineable() override { return true; }

  void End(const BlockAnswer& answer) {
    if (!answer.backend.empty()) {
      context_->AddTrailingMetadata(BackendKey(), answer.backend);
      context_->AddTrailingMetadata(RevisionKey(), answer.revision);
      if (wants_timings_) {
        context_->AddTrailingMetadata("fuseblock-timings", FormatTimings(answer));
      }
    }
    if (answer.status.ok()) answer.response.WriteTo(response_);
    Finish(ToGrpcStatus(answer.status, answer.block, context_));
  }

  grpc::CallbackServerContext* context_;
  grpc::ByteBuffer* response_;
  CancelSwitch cancel_;
  absl::Time deadline_ = absl::InfiniteFuture();
  bool wants_timings_ = false;
};

}  // namespace

BlockService::BlockService(const Options& options, Engine& engine, const BlockRegistry& registry,
                           Metrics& metrics, Shadow& shadow)
    : options_(options),
      registry_(registry),
      runner_(engine, registry, metrics, shadow, options.limits) {}

BlockService::~BlockService() = default;

grpc::ServerUnaryReactor* BlockService::RunBlock(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(context, response, runner_.engine());
  call->Start(runner_, request);
  return call;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* BlockService::StreamBlocks(
    grpc::CallbackServerContext* context) {
  std::shared_ptr<StreamCall> stream =
      StreamCall::Create(context, runner_, options_.stream_requests_max);
  bool ending = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending = ending_;
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                  [](const auto& weak) { return weak.expired(); }),
                   streams_.end());
    streams_.push_back(stream);
  }
  if (ending) {
    stream->EndWhenIdle();
  } else {
    stream->Start();
  }
  return stream.get();
}

void BlockService::EndStreams() {
  std::vector<std::weak_ptr<StreamCall>> streams;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    streams.swap(streams_);
  }
  for (const auto& weak : streams) {
    if (const std::shared_ptr<StreamCall> stream = weak.lock()) stream->EndWhenIdle();
  }
}

grpc::ServerUnaryReactor* BlockService::ListBlocks(grpc::CallbackServerContext* context,
                                                   const v1::ListBlocksRequest* request,
                                                   v1::ListBlocksResponse* response) {
  for (const BlockStatus& status : registry_.List(request->prefix())) {
    *response->add_blocks() = InfoOf(status, status.served.get(), options_.limits.tokens_max);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* BlockService::GetBlock(grpc::CallbackServerContext* context,
                                                 const v1::GetBlockRequest* request,
                                                 v1::GetBlockResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<BlockStatus> status = registry_.Get(request->block());
  absl::Status found = status.status();
  if (found.ok()) {
    std::shared_ptr<const ServedBlock> served = status->served;
    if (!request->revision().empty()) {
      auto asked = registry_.Find(request->block(), request->revision());
      found = asked.status();
      if (asked.ok()) served = *asked;
    }
    if (found.ok()) {
      *response->mutable_block() = InfoOf(*status, served.get(), options_.limits.tokens_max);
    }
  }
  if (!found.ok()) runner_.CountError(found);
  reactor->Finish(ToGrpcStatus(found, request->block(), context));
  return reactor;
}

}  // namespace fuseblock
