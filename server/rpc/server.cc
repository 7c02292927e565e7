#include "server/rpc/server.h"

#include <grpcpp/grpcpp.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "server/rpc/listen.h"

namespace fuseblock {
namespace {

// For a request's head: names, shapes, framing.
constexpr int64_t kHeadBytesMax = int64_t{64} << 10;
// HTTP/2's largest frame: fewer frames for a large message.
constexpr int kFrameBytesMax = (1 << 24) - 1;
constexpr int kKeepaliveMs = 60000;
constexpr int kKeepaliveTimeoutMs = 20000;
constexpr int kPingIntervalMinMs = 10000;

void SetArguments(grpc::ServerBuilder& builder, int64_t request_bytes_max) {
  SetTransportArguments(builder);
  builder.SetMaxReceiveMessageSize(static_cast<int>(
      std::min<int64_t>(request_bytes_max + kHeadBytesMax, std::numeric_limits<int>::max())));
  // A compressed message is measured before it is unpacked, so its size would bound nothing.
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  // Clients that vanished without a word are noticed; clients may ping idle connections.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingIntervalMinMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

// Calls the server from inside every 400 ms. gRPC's callback pollers go to sleep for 100 ms at a
// time once a second has passed without an event, and the next request would wait for one to wake.
class KeepWarm {
 public:
  explicit KeepWarm(grpc::Server& server)
      : stub_(grpc::health::v1::Health::NewStub(server.InProcessChannel({}))),
        thread_([this] { Loop(); }) {}
  ~KeepWarm() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void Loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(400), [this] { return stop_; })) {
      grpc::ClientContext context;
      grpc::health::v1::HealthCheckRequest request;
      grpc::health::v1::HealthCheckResponse response;
      bool done = false;
      stub_->async()->Check(&context, &request, &response, [this, &done](const grpc::Status&) {
        std::lock_guard<std::mutex> done_lock(mutex_);
        done = true;
        changed_.notify_all();
      });
      changed_.wait(lock, [&done] { return done; });
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  std::thread thread_;
};

RpcServer::RpcServer(const Options& options, Engine& engine, const BlockRegistry& registry,
                     Metrics& metrics, Shadow& shadow)
    : blocks_(options.blocks, engine, registry, metrics, shadow), health_(engine, registry) {}

RpcServer::~RpcServer() { Shutdown(absl::Now()); }

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const Options& options, Engine& engine,
                                                            const BlockRegistry& registry,
                                                            Metrics& metrics, Shadow& shadow) {
  std::unique_ptr<RpcServer> server(new RpcServer(options, engine, registry, metrics, shadow));
  auto listening = Listen(options.address, [&](grpc::ServerBuilder& builder) {
    SetArguments(builder, options.blocks.limits.bytes_max);
    builder.RegisterService(&server->blocks_);
    builder.RegisterService(&server->health_);
  });
  if (!listening.ok()) return listening.status();
  server->server_ = std::move(listening->server);
  server->address_ = std::move(listening->address);
  server->keep_warm_ = std::make_unique<KeepWarm>(*server->server_);
  return server;
}

void RpcServer::Shutdown(absl::Time deadline) {
  if (server_ == nullptr) return;
  keep_warm_.reset();
  blocks_.EndStreams();
  health_.EndWatches();
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
  server_.reset();
}

void SetTransportArguments(grpc::ServerBuilder& builder) {
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytesMax);
}

void TuneProcess() {
  // The distribution's Abseil is built with its search for deadlocks, under one lock for all
  // mutexes of the process, gRPC's among them.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  // Each arena keeps the most that it ever held: of one for every thread the process would grow by
  // each thread's largest message.
  mallopt(M_ARENA_MAX, static_cast<int>(std::max(2u, std::thread::hardware_concurrency())));
}

}  // namespace fuseblock
