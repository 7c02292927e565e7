// RunBlock over a real connection: bits, metadata, and every refusal with
// its status, reason and counter, none of which disturbs anybody else.
#include <array>
#include <future>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/reason.h"
#include "server/rpc/block_runner.h"
#include "tests/integration/rpc_fixture.h"

namespace fuseblock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RpcTest : public RpcFixture {
 protected:
  void Expect(const grpc::Status& status, grpc::StatusCode code, const char* reason,
              const std::string& message) {
    EXPECT_EQ(status.error_code(), code);
    EXPECT_EQ(status.error_message(), message);
    const Details details = DetailsOf(status);
    EXPECT_EQ(details.reason, reason);
    EXPECT_EQ(details.domain, "fuseblock");
  }
};

TEST_F(RpcTest, AnswersAreTheBlocksOwnBits) {
  StartServer();
  for (const char* part : {"mlp", "ffn_path", "ffn_norm", "attn_norm"}) {
    const std::string name = std::string("m.layers.1.") + part;
    for (const int64_t tokens : {0, 1, 5, 300}) {
      for (const bool residual : {false, true}) {
        if (residual && std::string(part) == "mlp") continue;
        v1::RunBlockRequest request;
        request.set_block(name);
        std::vector<RowTensor> inputs = {X(tokens, 5)};
        AddInput("x", inputs[0], &request);
        if (residual) {
          inputs.push_back(X(tokens, 6));
          AddInput("residual", inputs[1], &request);
        }
        v1::RunBlockResponse response;
        const grpc::Status status = RunRaw(request, &response);
        ASSERT_TRUE(status.ok()) << name << ": " << status.error_message();
        std::vector<RowTensor> expected = Alone(name, inputs);
        while (!expected.empty() && expected.back().dims.empty()) expected.pop_back();
        ASSERT_EQ(response.outputs_size(), static_cast<int>(expected.size()));
        for (int i = 0; i < response.outputs_size(); ++i) {
          EXPECT_EQ(response.outputs(i).data(), expected[i].bytes) << name << " " << tokens;
          EXPECT_THAT(response.outputs(i).shape(), ElementsAre(tokens, model_.hidden));
        }
        EXPECT_EQ(response.revision(), "1");
        EXPECT_EQ(response.backend(), "cpu");
      }
    }
  }
}

TEST_F(RpcTest, LeadingAxesComeBack) {
  StartServer();
  v1::RunBlockRequest request;
  request.set_block(kMlp);
  RowTensor x = X(24);
  x.dims = {2, 1, 3, 4, model_.hidden};
  AddInput("x", x, &request);
  v1::RunBlockResponse response;
  ASSERT_TRUE(RunRaw(request, &response).ok());
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2, 1, 3, 4, model_.hidden));
  EXPECT_EQ(response.outputs(0).data(), Alone(kMlp, {X(24)})[0].bytes);

  request.Clear();
  request.set_block("m.embed");
  v1::Tensor* ids = request.add_inputs();
  ids->set_name("ids");
  ids->set_data_type(v1::DATA_TYPE_INT32);
  for (const int64_t extent : {2, 3}) ids->add_shape(extent);
  const int32_t values[] = {0, 9, 3, 3, 1, 7};
  ids->set_data(values, sizeof(values));
  ASSERT_TRUE(RunRaw(request, &response).ok());
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2, 3, model_.hidden));
}

TEST_F(RpcTest, MetadataSaysWhoAnsweredAndWhereTheTimeWent) {
  StartServer();
  grpc::ClientContext plain, timed;
  ASSERT_TRUE(RunRaw(MlpRequest(2), nullptr, &plain).ok());
  const auto value = [](grpc::ClientContext& context, const char* key) {
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto found = trailers.find(key);
    return found == trailers.end() ? std::string("absent")
                                   : std::string(found->second.data(), found->second.size());
  };
  EXPECT_EQ(value(plain, "fuseblock-backend"), "cpu");
  EXPECT_EQ(value(plain, "fuseblock-revision"), "1");
  EXPECT_EQ(value(plain, "fuseblock-timings"), "absent");
  timed.AddMetadata("fuseblock-timings", "1");
  ASSERT_TRUE(RunRaw(MlpRequest(2), nullptr, &timed).ok());
  const std::string timings = value(timed, "fuseblock-timings");
  for (const char* phase : {"queue=", "batch=", "h2d=", "compute=", "d2h=", "encode="}) {
    EXPECT_THAT(timings, HasSubstr(phase));
  }
  client::CallOptions options;
  options.timings = true;
  const auto answer = client_->Run(client::Request(kMlp, {ToClient("x", X(2))}), options);
  ASSERT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(answer->timings_us.size(), 6u);
  EXPECT_GT(answer->timings_us.at("compute"), 0);
}

TEST_F(RpcTest, WrongTensorsAreNamedWithWhatWasExpected) {
  StartServer();
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  v1::RunBlockRequest request = MlpRequest(4);
  request.mutable_inputs(0)->set_shape(1, 47);
  Expect(RunRaw(request), invalid, "BAD_TENSOR", "x: expected [*, 48] BF16, got [4, 47] BF16");
  request = MlpRequest(4);
  request.mutable_inputs(0)->set_data_type(v1::DATA_TYPE_FP32);
  Expect(RunRaw(request), invalid, "BAD_TENSOR", "x: expected [*, 48] BF16, got [4, 48] FP32");
  request = MlpRequest(4);
  request.mutable_inputs(0)->mutable_data()->pop_back();
  Expect(RunRaw(request), invalid, "BAD_TENSOR", "x: expected 384 bytes for [4, 48] BF16, got 383");
  request = MlpRequest(4);
  *request.add_inputs() = request.inputs(0);
  Expect(RunRaw(request), invalid, "BAD_TENSOR", "x: given twice");
  request.mutable_inputs(1)->set_name("residual");
  Expect(RunRaw(request), invalid, "BAD_TENSOR",
         "\"residual\": not an input of m.layers.0.mlp, which takes x");
  request.clear_inputs();
  Expect(RunRaw(request), invalid, "BAD_TENSOR", "x: missing; expected [*, 48] BF16");
  request = MlpRequest(4);
  request.mutable_inputs(0)->set_shape(0, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(DetailsOf(RunRaw(request)).reason, "TOO_LARGE");
  EXPECT_EQ(Counter(R"(requests_total{block="m.layers.0.mlp",code="INVALID_ARGUMENT",)"
                    R"(rpc="RunBlock"})"),
            7);
  ExpectStillServing();
}

TEST_F(RpcTest, UnknownBlocksAndRevisionsAreNotFound) {
  StartServer();
  v1::RunBlockRequest request = MlpRequest(1);
  request.set_block("m.layers.9.mlp");
  grpc::Status status = RunRaw(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(status).reason, "BLOCK_NOT_FOUND");
  EXPECT_EQ(DetailsOf(status).block, "m.layers.9.mlp");
  EXPECT_THAT(status.error_message(), HasSubstr("m.layers.9.mlp"));
  request = MlpRequest(1);
  request.set_revision("2");
  EXPECT_EQ(RunRaw(request).error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_revision("one");
  EXPECT_EQ(RunRaw(request).error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_revision("1");
  EXPECT_TRUE(RunRaw(request).ok());
  // Names that clients made up share one series.
  for (int i = 0; i < 100; ++i) {
    request.set_block(absl::StrCat("made.up.", i));
    (void)RunRaw(request);
  }
  EXPECT_THAT(metrics_.Expose(), ::testing::Not(HasSubstr("made.up")));
  ExpectStillServing();
}

TEST_F(RpcTest, BlocksThatAreNotReadySayWhy) {
  Listen();
  registry_.Declare(kMlp);
  registry_.Declare("m.layers.0.attn_norm");
  registry_.Fail("m.layers.0.attn_norm", "model.safetensors: cut short");
  v1::RunBlockRequest request = MlpRequest(1);
  grpc::Status status = RunRaw(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(status).reason, "BLOCK_NOT_READY");
  EXPECT_GT(DetailsOf(status).retry_ms, 0);
  request.set_block("m.layers.0.attn_norm");
  status = RunRaw(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("cut short"));
  EXPECT_EQ(DetailsOf(status).retry_ms, 0);
}

TEST_F(RpcTest, AtTheLimitsAndOneAbove) {
  rpc_options_.blocks.limits = {10, 10 * 48 * 2};
  StartServer();
  EXPECT_TRUE(RunRaw(MlpRequest(10)).ok());
  v1::RunBlockRequest request = MlpRequest(11);
  Expect(RunRaw(request), grpc::StatusCode::INVALID_ARGUMENT, "TOO_LARGE",
         "request: expected at most 960 bytes of tensors, got 1056");
  request = MlpRequest(11);
  request.mutable_inputs(0)->clear_data();
  Expect(RunRaw(request), grpc::StatusCode::INVALID_ARGUMENT, "TOO_LARGE",
         "x: expected at most 10 tokens, got [11, 48] BF16");
  // Above the transport's own limit gRPC answers.
  request.mutable_inputs(0)->set_data(std::string((64 << 10) + 960, 'x'));
  EXPECT_EQ(RunRaw(request).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectStillServing();
}

TEST_F(RpcTest, MessagesAboveGrpcsOwnLimitPassBothWays) {
  engine_options_.batch_tokens_max = engine_options_.request_tokens_max = 50000;
  rpc_options_.blocks.limits = {50000, 1 << 24};
  StartServer();
  const RowTensor x = X(50000);
  ASSERT_GT(x.bytes.size(), size_t{4} << 20);
  const std::string norm = "m.layers.0.attn_norm";
  const auto answer = client_->Run(client::Request(norm, {ToClient("x", x)}));
  ASSERT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(BytesOf(answer->outputs[0]), Alone(norm, {x})[0].bytes);
}

TEST_F(RpcTest, AnswersAreCounted) {
  StartServer();
  const v1::RunBlockRequest request = MlpRequest(3);
  v1::RunBlockResponse response;
  ASSERT_TRUE(RunRaw(request, &response).ok());
  EXPECT_EQ(Counter("request_bytes_sum"), static_cast<double>(request.ByteSizeLong()));
  EXPECT_EQ(Counter("response_bytes_sum"), static_cast<double>(response.ByteSizeLong()));
  for (const char* phase : {"queue", "batch", "compute", "encode"}) {
    EXPECT_EQ(Counter(absl::StrCat(R"(phase_duration_seconds_count{block=")", kMlp, R"(",phase=")",
                                   phase, "\"}")),
              1)
        << phase;
  }
}

TEST_F(RpcTest, ALongMessageIsCutSoThatTheStatusStillTravels) {
  Listen();
  registry_.Declare(kMlp);
  registry_.Fail(kMlp, std::string(20000, 'x'));
  const grpc::Status status = RunRaw(MlpRequest(1));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(status).reason, "BLOCK_NOT_READY");
  EXPECT_THAT(status.error_message(), ::testing::EndsWith("xxx..."));
}

TEST_F(RpcTest, MetadataOutsideItsRangeIsRefused) {
  StartServer();
  grpc::ClientContext bad, long_tenant, good;
  bad.AddMetadata("fuseblock-priority", "4");
  Expect(RunRaw(MlpRequest(1), nullptr, &bad), grpc::StatusCode::INVALID_ARGUMENT, "BAD_TENSOR",
         "metadata fuseblock-priority: expected 0 to 3, got \"4\"");
  const std::string tenant(128, 't');
  long_tenant.AddMetadata("fuseblock-tenant", tenant + "t");
  Expect(RunRaw(MlpRequest(1), nullptr, &long_tenant), grpc::StatusCode::INVALID_ARGUMENT,
         "BAD_TENSOR",
         "metadata fuseblock-tenant: expected at most 128 bytes, got \"" + tenant + "t\"");
  good.AddMetadata("fuseblock-priority", "0");
  good.AddMetadata("fuseblock-tenant", tenant);
  EXPECT_TRUE(RunRaw(MlpRequest(1), nullptr, &good).ok());
}

TEST_F(RpcTest, CompressedMessagesAreRefusedBeforeTheyAreUnpacked) {
  StartServer();
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  EXPECT_EQ(RunRaw(MlpRequest(64), nullptr, &context).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  ExpectStillServing();
}

TEST_F(RpcTest, BytesThatAreNoMessageAreTheClientsError) {
  StartServer();
  for (const std::string bytes : {"\x0a", "\xff\xff\xff", "\x1a\x05zz", "nonsense"}) {
    const grpc::Status status = RawCall("/fuseblock.v1.BlockService/RunBlock", bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("malformed message at byte"));
  }
  ExpectStillServing();
}

// Requests that a held lane keeps: one that runs, and others that wait behind it.
class HeldRpcTest : public RpcTest {
 protected:
  using Result = absl::StatusOr<client::Answer>;
  std::future<Result> RunAsync(int64_t tokens, uint32_t seed,
                               const client::CallOptions& options = {},
                               std::vector<client::Call>* calls = nullptr) {
    auto promise = std::make_shared<std::promise<Result>>();
    client::Call call =
        client_->RunAsync(client::Request(kMlp, {ToClient("x", X(tokens, seed))}), options,
                          [promise](Result result) { promise->set_value(std::move(result)); });
    if (calls != nullptr) calls->push_back(std::move(call));
    return promise->get_future();
  }
  // A request that the lane keeps until Release.
  std::future<Result> HoldLaneWith(int64_t tokens, uint32_t seed,
                                   const client::CallOptions& options = {}) {
    faults_->Hold(kCpu);
    auto running = RunAsync(tokens, seed, options);
    faults_->AwaitHeld(kCpu, 1);
    return running;
  }
  void ExpectBits(Result result, int64_t tokens, uint32_t seed) {
    ASSERT_EQ(result.status(), absl::OkStatus());
    const auto expected = Alone(kMlp, {X(tokens, seed)});
    EXPECT_EQ(BytesOf(result->outputs[0]), expected[0].bytes);
  }
};

TEST_F(HeldRpcTest, AFullQueueRefusesExactlyWhatDoesNotFit) {
  engine_options_.queue_tokens_max = 10;
  engine_options_.request_tokens_max = 10;
  StartServer();
  auto running = HoldLaneWith(4, 1);
  auto waiting = RunAsync(6, 2);
  Await("inflight_requests", 2);
  const grpc::Status status = RunRaw(MlpRequest(1));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).reason, "QUEUE_FULL");
  EXPECT_GT(DetailsOf(status).retry_ms, 0);
  const auto refused = RunAsync(1, 3).get();
  const client::Error error = client::ErrorOf(refused.status());
  EXPECT_EQ(error.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_GT(error.retry_after, absl::ZeroDuration());
  EXPECT_EQ(Counter(R"(shed_total{block="m.layers.0.mlp",cause="queue_full"})"), 2);
  faults_->Release(kCpu);
  ExpectBits(running.get(), 4, 1);
  ExpectBits(waiting.get(), 6, 2);
}

TEST_F(HeldRpcTest, RetryTrailerComesWithARefusal) {
  engine_options_.queue_tokens_max = 4;
  engine_options_.request_tokens_max = 4;
  StartServer();
  auto running = HoldLaneWith(4, 1);
  grpc::ClientContext context;
  EXPECT_FALSE(RunRaw(MlpRequest(1), nullptr, &context).ok());
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  faults_->Release(kCpu);
  ExpectBits(running.get(), 4, 1);
}

TEST_F(HeldRpcTest, DeadlinesPassWhileTheLaneIsBusy) {
  constexpr char kExpired[] = R"(shed_total{block="m.layers.0.mlp",cause="expired"})";
  StartServer();
  auto running = HoldLaneWith(4, 1);
  // On a busy machine a deadline may pass before its request arrives, and then nothing expires in
  // the queue: longer ones follow until one does.
  for (absl::Duration deadline = absl::Milliseconds(100); Counter(kExpired) == 0; deadline *= 2) {
    auto expiring = RunAsync(6, 2, {.timeout = deadline});
    EXPECT_EQ(expiring.get().status().code(), absl::StatusCode::kDeadlineExceeded);
    Await("inflight_requests", 1);
  }
  faults_->Release(kCpu);
  ExpectBits(running.get(), 4, 1);
  EXPECT_EQ(faults_->launches(kCpu), 1);
}

// Which of the waiting requests runs next shows in which of them the injected failures meet: the
// one in the lane, and those that follow it.
TEST_F(HeldRpcTest, APriorityIsServedFirst) {
  engine_options_.batch_tokens_max = engine_options_.request_tokens_max = 4;
  StartServer();
  auto running = HoldLaneWith(4, 1);
  auto low = RunAsync(4, 2, {.priority = 3});
  Await("inflight_requests", 2);
  auto high = RunAsync(4, 3, {.priority = 0});
  Await("inflight_requests", 3);
  faults_->Inject(kCpu, Fault::kLaunchFailure, 2);
  faults_->Release(kCpu);
  EXPECT_EQ(running.get().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(high.get().status().code(), absl::StatusCode::kInternal);
  ExpectBits(low.get(), 4, 2);
}

TEST_F(HeldRpcTest, TenantsTakeTurns) {
  engine_options_.batch_tokens_max = engine_options_.request_tokens_max = 4;
  StartServer();
  auto running = HoldLaneWith(4, 1, {.tenant = "a"});
  std::vector<std::future<Result>> many;
  for (const uint32_t seed : {2, 3, 4}) {
    many.push_back(RunAsync(4, seed, {.tenant = "a"}));
    Await("inflight_requests", seed);
  }
  auto other = RunAsync(4, 5, {.tenant = "b"});
  Await("inflight_requests", 5);
  faults_->Inject(kCpu, Fault::kLaunchFailure, 3);
  faults_->Release(kCpu);
  EXPECT_EQ(running.get().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(many[0].get().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(other.get().status().code(), absl::StatusCode::kInternal);
  ExpectBits(many[1].get(), 4, 3);
  ExpectBits(many[2].get(), 4, 4);
}

TEST_F(HeldRpcTest, ACancellationThatCameBeforeItsRequestCancelsIt) {
  StartServer();
  auto running = HoldLaneWith(4, 1);
  CancelSwitch cancel(*engine_);
  cancel.Cancel();
  Request request;
  request.block = Served(kMlp);
  request.inputs[0].present = true;
  request.inputs[0].dtype = model_.dtype;
  std::promise<absl::Status> ended;
  request.done = [&](Outcome outcome) { ended.set_value(outcome.status); };
  cancel.Started(engine_->Submit(std::move(request)));
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
  faults_->Release(kCpu);
  ExpectBits(running.get(), 4, 1);
}

TEST_F(HeldRpcTest, ACancelledRequestNeverRunsAndHarmsNobody) {
  StartServer();
  faults_->Hold(kCpu);
  std::vector<client::Call> calls;
  auto running = RunAsync(4, 1);
  faults_->AwaitHeld(kCpu, 1);
  auto before = RunAsync(1, 2);
  auto cancelled = RunAsync(7, 3, {}, &calls);
  auto after = RunAsync(1, 4);
  Await("inflight_requests", 4);
  calls[0].Cancel();
  EXPECT_EQ(cancelled.get().status().code(), absl::StatusCode::kCancelled);
  Await("inflight_requests", 3);
  faults_->Release(kCpu);
  ExpectBits(running.get(), 4, 1);
  ExpectBits(before.get(), 1, 2);
  ExpectBits(after.get(), 1, 4);
  EXPECT_EQ(Counter(R"(useful_tokens_total{block="m.layers.0.mlp"})"), 6);
}

TEST_F(HeldRpcTest, AClientThatGoesWhileItRunsLeavesNothingBehind) {
  StartServer();
  faults_->Hold(kCpu);
  {
    client::Client gone(rpc_->address());
    std::promise<void> ended;
    client::Call call = gone.RunAsync(client::Request(kMlp, {ToClient("x", X(5))}), {},
                                      [&](Result) { ended.set_value(); });
    faults_->AwaitHeld(kCpu, 1);
    call.Cancel();
    ended.get_future().wait();
  }
  faults_->Release(kCpu);
  Await("inflight_requests", 0);
  EXPECT_EQ(Counter("queue_tokens"), 0);
  EXPECT_EQ(Counter("queue_bytes"), 0);
  ExpectStillServing();
}

TEST_F(HeldRpcTest, AClientsEndCancelsItsCallsOnly) {
  StartServer();
  auto other = HoldLaneWith(2, 1);
  std::array<absl::StatusCode, 2> codes{};
  {
    client::Client gone(rpc_->address());
    for (absl::StatusCode& code : codes) {
      gone.RunAsync(client::Request(kMlp, {ToClient("x", X(3))}), {},
                    [&code](Result answer) { code = answer.status().code(); });
    }
    Await("inflight_requests", 3);
  }
  EXPECT_THAT(codes, ElementsAre(absl::StatusCode::kCancelled, absl::StatusCode::kCancelled));
  Await("inflight_requests", 1);
  faults_->Release(kCpu);
  ExpectBits(other.get(), 2, 1);
}

TEST_F(HeldRpcTest, ALostDeviceIsAnsweredByTheCpuAndSaysSo) {
  engine_options_.devices = {kGpu, kCpu};
  StartServer();
  auto answer = RunAsync(3, 1).get();
  ExpectBits(answer, 3, 1);
  EXPECT_EQ(answer->backend, "cuda:0");
  faults_->Inject(kGpu, Fault::kDeviceLost);
  answer = RunAsync(4, 2).get();
  ExpectBits(answer, 4, 2);
  EXPECT_EQ(answer->backend, "cpu");
  EXPECT_GT(Counter(R"(fallback_total{block="m.layers.0.mlp",cause="device_lost"})"), 0);
}

TEST_F(HeldRpcTest, WithoutFallbackALostDeviceIsUnavailable) {
  engine_options_.devices = {kGpu};
  engine_options_.fallback = FallbackPolicy::kRefuse;
  StartServer();
  faults_->Inject(kGpu, Fault::kDeviceLost);
  (void)RunAsync(4, 2).get();
  const grpc::Status status = RunRaw(MlpRequest(1));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "DEVICE_LOST");
}

}  // namespace
}  // namespace fuseblock::testing
