// A real server inside the test: a tiny Llama written by the test, loaded, served over a Unix
// socket by the real engine, whose lanes can be held and broken.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/cpp/client.h"
#include "fuseblock/v1/block_service.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/engine/engine.h"
#include "server/engine/faulty_lane.h"
#include "server/engine/shadow.h"
#include "server/engine/simulated_lane.h"
#include "server/model/loader.h"
#include "server/model/registry.h"
#include "server/observe/metrics.h"
#include "server/rpc/codec.h"
#include "server/rpc/server.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/run_block.h"

namespace fuseblock::testing {

inline const Device kCpu = {DeviceType::kCpu, 0};
inline const Device kGpu = {DeviceType::kCuda, 0};

// Rows of seeded values that every float dtype holds exactly.
inline RowTensor MakeRows(DType dtype, std::vector<int64_t> dims, uint32_t seed) {
  std::mt19937 random(seed);
  int64_t count = 1;
  for (const int64_t extent : dims) count *= extent;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 63) - 31) / 16;
  return {dtype, std::move(dims), EncodeValues(values, dtype)};
}

inline client::Tensor ToClient(const char* name, const RowTensor& rows) {
  return {name, ToWire(rows.dtype), rows.dims, client::Bytes(rows.bytes)};
}
inline void AddInput(const char* name, const RowTensor& rows, v1::RunBlockRequest* request) {
  v1::Tensor* tensor = request->add_inputs();
  tensor->set_name(name);
  tensor->set_data_type(ToWire(rows.dtype));
  for (const int64_t extent : rows.dims) tensor->add_shape(extent);
  tensor->set_data(rows.bytes);
}

inline std::string BytesOf(const client::Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
}

// What a failed call carried in grpc-status-details-bin.
struct Details {
  std::string reason, domain, block;
  int64_t retry_ms = 0;
};
inline Details DetailsOf(const grpc::Status& status) {
  Details out;
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(details.message(), status.error_message());
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info)) {
      out.reason = info.reason();
      out.domain = info.domain();
      const auto block = info.metadata().find("block");
      if (block != info.metadata().end()) out.block = block->second;
    }
    if (detail.UnpackTo(&retry)) {
      out.retry_ms = retry.retry_delay().seconds() * 1000 + retry.retry_delay().nanos() / 1000000;
    }
  }
  return out;
}

class RpcFixture : public ::testing::Test {
 protected:
  RpcFixture() {
    engine_options_.devices = {kCpu};
    engine_options_.lanes_per_device = 1;
    engine_options_.cpu_threads = 1;
    rpc_options_.blocks.limits = {4096, 1 << 24};
    model_.hidden = 48;
    model_.intermediate = 96;
    model_.dtype = DType::kBF16;
  }
  ~RpcFixture() override { Stop(); }

  // Listens and loads. With a GPU among the devices it is simulated.
  void StartServer() {
    ASSERT_NO_FATAL_FAILURE(Listen());
    ASSERT_EQ(Load("m"), absl::OkStatus());
    rpc_->health().SetPhase(HealthService::Phase::kServing);
  }

  void Listen() {
    engine_options_.make_lane = WithFaults(SimulatedDevices(), faults_);
    engine_options_.on_device_change = [this] {
      if (HealthService* health = health_.load()) health->DevicesChanged();
    };
    auto engine = Engine::Create(engine_options_, metrics_);
    ASSERT_EQ(engine.status(), absl::OkStatus());
    engine_ = *std::move(engine);
    rpc_options_.address = "unix:" + folder_.File("socket");
    Shadow::Options shadow;
    shadow.devices = engine_options_.devices;
    shadow.make_lane = WithFaults(SimulatedDevices(), shadow_faults_);
    shadow_ = std::make_unique<Shadow>(std::move(shadow), registry_);
    auto rpc = RpcServer::Start(rpc_options_, *engine_, registry_, metrics_, *shadow_);
    ASSERT_EQ(rpc.status(), absl::OkStatus());
    rpc_ = *std::move(rpc);
    health_ = &rpc_->health();
    registry_.OnChange([this](const std::string& name) { rpc_->health().BlockChanged(name); });
    client_ = std::make_unique<client::Client>(rpc_->address());
    // Without probing the window stays small: what a client does not read is not written out
    // either.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    channel_ =
        grpc::CreateCustomChannel(rpc_->address(), grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::BlockService::NewStub(channel_);
  }

  absl::Status Load(const std::string& name, int64_t revision = 1) {
    model_.Write(folder_);
    ModelOptions options;
    options.name = name;
    options.revision = revision;
    options.path = folder_.path();
    // A simulated GPU computes with the CPU's copy of the weights.
    return LoadModel(options, {kCpu}, registry_,
                     [this](const ServedBlock& block, int) { return engine_->Prepare(block); });
  }

  void Stop() {
    health_ = nullptr;
    client_.reset();
    rpc_.reset();
    engine_.reset();
    shadow_.reset();
  }

  std::shared_ptr<const ServedBlock> Served(const std::string& name) {
    auto block = registry_.Find(name, "");
    EXPECT_EQ(block.status(), absl::OkStatus());
    return *block;
  }

  // A block's outputs, run directly and alone.
  std::vector<RowTensor> Alone(const std::string& name, std::vector<RowTensor> inputs) {
    auto outputs = RunOnCpu(*Served(name)->On(kCpu), std::move(inputs));
    EXPECT_EQ(outputs.status(), absl::OkStatus());
    return *outputs;
  }

  double Counter(const std::string& sample) const { return metrics_.Value("fuseblock_" + sample); }
  // The sample has that value, now or soon: the server updates it on its own threads.
  void Await(const std::string& sample, double value) const {
    const absl::Time hang = HangTime();
    double seen = Counter(sample);
    for (; seen != value && absl::Now() < hang; seen = Counter(sample)) std::this_thread::yield();
    EXPECT_EQ(seen, value) << sample;
  }
  // By then whatever was waited for is not going to come: a bound on a hang, not a measure.
  static absl::Time HangTime() { return absl::Now() + absl::Seconds(60); }

  RowTensor X(int64_t tokens, uint32_t seed = 1) const {
    return MakeRows(model_.dtype, {tokens, model_.hidden}, seed);
  }

  // One unary call by the generated stub.
  grpc::Status RunRaw(const v1::RunBlockRequest& request, v1::RunBlockResponse* response = nullptr,
                      grpc::ClientContext* context = nullptr) {
    v1::RunBlockResponse unread;
    grpc::ClientContext plain;
    return stub_->RunBlock(context != nullptr ? context : &plain, request,
                           response != nullptr ? response : &unread);
  }

  // One call of any method with any bytes; a stream's is its only message.
  grpc::Status RawCall(const std::string& method, const std::string& bytes,
                       std::string* answer = nullptr) {
    grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> generic(channel_);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::ClientContext context;
    std::promise<grpc::Status> ended;
    generic.UnaryCall(&context, method, {}, &request, &response,
                      [&](grpc::Status status) { ended.set_value(std::move(status)); });
    const grpc::Status status = ended.get_future().get();
    grpc::Slice whole;
    if (answer != nullptr && status.ok() && response.DumpToSingleSlice(&whole).ok()) {
      answer->assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
    }
    return status;
  }

  v1::RunBlockRequest MlpRequest(int64_t tokens, uint32_t seed = 1) const {
    v1::RunBlockRequest request;
    request.set_block(kMlp);
    AddInput("x", X(tokens, seed), &request);
    return request;
  }

  // Whether the server still answers, with the right bits: nobody else was disturbed.
  void ExpectStillServing() {
    v1::RunBlockResponse response;
    const grpc::Status status = RunRaw(MlpRequest(3, 77), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.outputs(0).data(), Alone(kMlp, {X(3, 77)})[0].bytes);
  }

  static constexpr const char* kMlp = "m.layers.0.mlp";

  TempFolder folder_;
  TinyLlama model_;
  EngineOptions engine_options_;
  RpcServer::Options rpc_options_;
  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  std::shared_ptr<Faults> shadow_faults_ = std::make_shared<Faults>();  // of the shadow's lanes
  std::atomic<HealthService*> health_ = nullptr;
  Metrics metrics_;
  BlockRegistry registry_;
  std::unique_ptr<Shadow> shadow_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<client::Client> client_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::BlockService::Stub> stub_;
};

}  // namespace fuseblock::testing
