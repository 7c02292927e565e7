// What a request costs beside the bare transport: the server with the cheapest block (a norm)
// against a gRPC echo on the same API (raw messages, one gather copy in, none out), in one process,
// turn by turn.
//
//   rpc_bench [SECONDS-PER-ROW]     prints a table; a row's two numbers are of the same minute
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/encoded.h"
#include "server/model/loader.h"
#include "server/rpc/server.h"
#include "tests/support/checkpoint_files.h"

namespace fuseblock::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHidden = 512;  // BF16: a token is 1 KiB
constexpr int kMessageBytesMax = 64 << 20;

// Copies the payload once, as a server that computes must, and answers with the copy.
class EchoService final : public RawBlockService {
 public:
  grpc::ServerUnaryReactor* RunBlock(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    std::vector<grpc::Slice> slices;
    (void)request->Dump(&slices);
    auto* copy = static_cast<char*>(std::malloc(request->Length()));
    size_t at = 0;
    for (const grpc::Slice& slice : slices) {
      std::memcpy(copy + at, slice.begin(), slice.size());
      at += slice.size();
    }
    const grpc::Slice answer(copy, at, std::free);
    *response = grpc::ByteBuffer(&answer, 1);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

struct Row {
  double per_second = 0, p50_us = 0, p99_us = 0;
};

// A closed loop of raw calls on one completion queue, so that the client's own parsing stays out.
class Load {
 public:
  Load(const std::string& address, const client::Request& request)
      : request_(request.encoded().Unary()) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (1 << 24) - 1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  Row Run(int in_flight, double seconds) {
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < in_flight; ++i) calls.push_back(std::make_unique<Call>());
    std::vector<double> latencies;
    const Clock::time_point begin = Clock::now();
    const Clock::time_point end = begin + std::chrono::nanoseconds(int64_t(seconds * 1e9));
    for (auto& call : calls) Start(*call);
    int running = in_flight;
    void* tag = nullptr;
    for (bool ok = false; running > 0 && queue_.Next(&tag, &ok);) {
      Call& call = *static_cast<Call*>(tag);
      if (!call.status.ok()) {
        std::fprintf(stderr, "%s\n", call.status.error_message().c_str());
        std::exit(1);
      }
      const Clock::time_point now = Clock::now();
      latencies.push_back(std::chrono::duration<double, std::micro>(now - call.begin).count());
      if (now < end) {
        Start(call);
      } else {
        --running;
      }
    }
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    std::sort(latencies.begin(), latencies.end());
    return {static_cast<double>(latencies.size()) / took, latencies[latencies.size() / 2],
            latencies[latencies.size() * 99 / 100]};
  }

 private:
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    grpc::ByteBuffer response;
    grpc::Status status;
    Clock::time_point begin;
  };
  void Start(Call& call) {
    call.context = std::make_unique<grpc::ClientContext>();
    call.response.Clear();
    call.begin = Clock::now();
    call.reader = stub_->PrepareUnaryCall(call.context.get(), "/fuseblock.v1.BlockService/RunBlock",
                                          request_, &queue_);
    call.reader->StartCall();
    call.reader->Finish(&call.response, &call.status, &call);
  }

  grpc::ByteBuffer request_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

std::unique_ptr<grpc::Server> StartEcho(EchoService& service, const std::string& address) {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (1 << 24) - 1);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  return builder.BuildAndStart();
}

int Main(double seconds) {
  TuneAllocator();
  TempFolder folder;
  TinyLlama model;
  model.hidden = kHidden;
  model.intermediate = 16;
  model.layers = 1;
  model.dtype = DType::kBF16;
  model.Write(folder);

  Metrics metrics;
  BlockRegistry registry;
  EngineOptions options;
  options.devices = {Device{}};
  options.queue_tokens_max = int64_t{1} << 20;
  auto engine = Engine::Create(options, metrics);
  ModelOptions model_options;
  model_options.name = "m";
  model_options.path = folder.path();
  model_options.parts = {"attn_norm"};
  const auto prepare = [&](const ServedBlock& block) { return (*engine)->Prepare(block); };
  const absl::Status loaded = LoadModel(model_options, {Device{}}, registry, prepare);
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.ToString().c_str());
    return 1;
  }
  RpcServer::Options rpc;
  rpc.address = "unix:" + folder.File("blocks");
  rpc.blocks.limits = {4096, kMessageBytesMax};
  auto server = RpcServer::Start(rpc, **engine, registry, metrics);
  EchoService echo_service;
  const std::string echo_address = "unix:" + folder.File("echo");
  const auto echo = StartEcho(echo_service, echo_address);

  std::printf("%8s %9s | %32s | %32s | %s\n", "KiB", "in flight", "echo: per s, p50 us, p99 us",
              "norm: per s, p50 us, p99 us", "norm / echo");
  for (const int64_t tokens : {1, 16, 256, 4096}) {
    const std::string x(static_cast<size_t>(tokens * kHidden * 2), '\x3c');
    const client::Request request("m.layers.0.attn_norm",
                                  {{"x", v1::DATA_TYPE_BF16, {tokens, kHidden}, client::Bytes(x)}});
    Load to_echo(echo_address, request), to_norm(rpc.address, request);
    for (const int in_flight : {1, 4, 32}) {
      (void)to_echo.Run(in_flight, seconds / 4);
      (void)to_norm.Run(in_flight, seconds / 4);
      const Row a = to_echo.Run(in_flight, seconds);
      const Row b = to_norm.Run(in_flight, seconds);
      std::printf("%8ld %9d | %12.0f %9.0f %9.0f | %12.0f %9.0f %9.0f | %.2f\n",
                  static_cast<long>(tokens), in_flight, a.per_second, a.p50_us, a.p99_us,
                  b.per_second, b.p50_us, b.p99_us, b.per_second / a.per_second);
    }
  }
  (*server)->Shutdown(absl::Now());
  echo->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace fuseblock::testing

int main(int argc, char** argv) {
  return fuseblock::testing::Main(argc > 1 ? std::atof(argv[1]) : 2.0);
}
