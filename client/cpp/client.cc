#include "client/cpp/client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/cpp/callback_scope.h"
#include "client/cpp/encoded.h"
#include "client/cpp/stream.h"
#include "fuseblock/v1/block_service.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace fuseblock::client {
namespace {

using RunStub = grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::RunBlockResponse>;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (1 << 24) - 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

// "queue=1.5,batch=0.2" as a map.
std::map<std::string, double> TimingsFrom(const grpc::ClientContext& context) {
  std::map<std::string, double> timings;
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("fuseblock-timings");
  if (found == trailers.end()) return timings;
  const absl::string_view text(found->second.data(), found->second.size());
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<std::string, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    double microseconds = 0;
    if (absl::SimpleAtod(parts.second, &microseconds)) timings[parts.first] = microseconds;
  }
  return timings;
}

}  // namespace

Answer AnswerFrom(v1::RunBlockResponse response) {
  const auto owned = std::make_shared<const v1::RunBlockResponse>(std::move(response));
  Answer answer;
  answer.revision = owned->revision();
  answer.backend = owned->backend();
  for (const v1::Tensor& output : owned->outputs()) {
    answer.outputs.push_back({output.name(),
                              output.data_type(),
                              {output.shape().begin(), output.shape().end()},
                              Bytes(output.data())});
  }
  answer.storage = owned;
  return answer;
}

// One unary call. Its context holds the channel; it goes with the call's end, on gRPC's thread,
// while the connection holds the channel as well. On gRPC's threads the channel's last reference
// must not go: the end of the process's last channel joins them.
struct Call::State {
  std::mutex mutex;
  std::optional<grpc::ClientContext> context;  // until the call has ended; guarded by `mutex`
  grpc::ByteBuffer request;
  v1::RunBlockResponse response;
  absl::AnyInvocable<void(absl::StatusOr<Answer>) &&> done;

  void Cancel() {
    std::lock_guard<std::mutex> lock(mutex);
    if (context.has_value()) context->TryCancel();
  }

  // On gRPC's thread: lets go of the context, then hands the answer over.
  void End(const grpc::Status& status) {
    absl::StatusOr<Answer> answer;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (status.ok()) {
        answer = AnswerFrom(std::move(response));
        answer->timings_us = TimingsFrom(*context);
      } else {
        answer = ErrorFrom(status);
      }
      context.reset();
    }
    const CallbackScope scope;
    auto last = std::move(done);  // what it holds goes before the client may
    std::move(last)(std::move(answer));
  }
};

void Call::Cancel() { state_->Cancel(); }

struct Client::Connection {
  explicit Connection(const std::string& target)
      : channel(MakeChannel(target)),
        run(channel),
        stream(channel),
        blocks(v1::BlockService::NewStub(channel)),
        health(grpc::health::v1::Health::NewStub(channel)) {}

  // Cancels the calls in flight and waits until the last of their callbacks has returned.
  ~Connection() {
    std::unique_lock<std::mutex> lock(mutex);
    for (const std::shared_ptr<Call::State>& call : calls) call->Cancel();
    all_ended.wait(lock, [this] { return calls.empty(); });
  }

  std::shared_ptr<grpc::Channel> channel;
  RunStub run;
  StreamStub stream;
  std::unique_ptr<v1::BlockService::Stub> blocks;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;

  std::mutex mutex;
  std::condition_variable all_ended;
  std::unordered_set<std::shared_ptr<Call::State>> calls;  // not ended; guarded by `mutex`
};

Client::Client(const std::string& target) : connection_(std::make_unique<Connection>(target)) {}

Client::~Client() {
  if (!CallbackScope::Active()) return;
  // The connection would wait for the callback that this is part of, and its channel's end for this
  // thread.
  std::thread([connection = std::move(connection_)]() mutable { connection.reset(); }).detach();
}

Call Client::RunAsync(const Request& request, const CallOptions& options,
                      absl::AnyInvocable<void(absl::StatusOr<Answer>) &&> done) {
  auto state = std::make_shared<Call::State>();
  state->request = request.encoded().Unary();
  state->done = std::move(done);
  Connection& connection = *connection_;
  {
    std::lock_guard<std::mutex> lock(connection.mutex);
    connection.calls.insert(state);
  }
  std::lock_guard<std::mutex> lock(state->mutex);
  ApplyOptions(options, state->context.emplace());
  connection.run.UnaryCall(&*state->context, "/fuseblock.v1.BlockService/RunBlock", {},
                           &state->request, &state->response,
                           [&connection, state](const grpc::Status& status) {
                             state->End(status);
                             std::lock_guard<std::mutex> calls_lock(connection.mutex);
                             connection.calls.erase(state);
                             if (connection.calls.empty()) connection.all_ended.notify_all();
                           });
  return Call(state);
}

absl::StatusOr<Answer> Client::Run(const Request& request, const CallOptions& options) {
  std::promise<absl::StatusOr<Answer>> promise;
  std::future<absl::StatusOr<Answer>> answer = promise.get_future();
  RunAsync(request, options, [promise = std::move(promise)](absl::StatusOr<Answer> result) mutable {
    promise.set_value(std::move(result));
  });
  return answer.get();
}

std::unique_ptr<Stream> Client::OpenStream(const CallOptions& options, Stream::OnAnswer on_answer) {
  return std::make_unique<Stream>(
      Stream::Reactor::Start(connection_->stream, options, std::move(on_answer)));
}

absl::StatusOr<std::vector<v1::BlockInfo>> Client::ListBlocks(const std::string& prefix,
                                                              const CallOptions& options) {
  grpc::ClientContext context;
  ApplyOptions(options, context);
  v1::ListBlocksRequest request;
  request.set_prefix(prefix);
  v1::ListBlocksResponse response;
  const grpc::Status status = connection_->blocks->ListBlocks(&context, request, &response);
  if (!status.ok()) return ErrorFrom(status);
  return std::vector<v1::BlockInfo>(response.blocks().begin(), response.blocks().end());
}

absl::StatusOr<v1::BlockInfo> Client::GetBlock(const std::string& block,
                                               const std::string& revision,
                                               const CallOptions& options) {
  grpc::ClientContext context;
  ApplyOptions(options, context);
  v1::GetBlockRequest request;
  request.set_block(block);
  request.set_revision(revision);
  v1::GetBlockResponse response;
  const grpc::Status status = connection_->blocks->GetBlock(&context, request, &response);
  if (!status.ok()) return ErrorFrom(status);
  return response.block();
}

absl::StatusOr<HealthState> Client::Health(const std::string& service, const CallOptions& options) {
  grpc::ClientContext context;
  ApplyOptions(options, context);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = connection_->health->Check(&context, request, &response);
  if (!status.ok()) return ErrorFrom(status);
  switch (response.status()) {
    case grpc::health::v1::HealthCheckResponse::SERVING:
      return HealthState::kServing;
    case grpc::health::v1::HealthCheckResponse::NOT_SERVING:
      return HealthState::kNotServing;
    default:
      return HealthState::kUnknown;
  }
}

}  // namespace fuseblock::client
