// The engine with nothing broken: answers, batches, refusals, deadlines, cancellation.
#include "server/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/engine/buckets.h"
#include "server/engine/memory_plan.h"
#include "tests/unit/server/engine/engine_fixture.h"

namespace fuseblock {
namespace {

using testing::Call;
using testing::EngineTest;
using testing::Ids;
using testing::kHidden;
using testing::kVocabulary;
using testing::RandomRows;

constexpr BlockKind kNorm = BlockKind::kNormResidual;

TEST_F(EngineTest, RefusesOptionsThatContradictOneAnother) {
  const auto with = [&](auto change) {
    EngineOptions options = options_;
    change(options);
    return Engine::Create(options, metrics_).status();
  };
  const absl::Status status = with([](EngineOptions& o) { o.request_tokens_max = 1001; });
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(),
            "request_tokens_max: expected at most queue_tokens_max (1000), got 1001");
  EXPECT_FALSE(with([](EngineOptions& o) { o.devices.clear(); }).ok());
  EXPECT_FALSE(with([](EngineOptions& o) { o.lanes_per_device = 0; }).ok());
  EXPECT_FALSE(with([](EngineOptions& o) { o.queue_bytes_max = 0; }).ok());
  EXPECT_FALSE(with([](EngineOptions& o) { o.queue_tokens_max = 63; }).ok());
  EXPECT_FALSE(with([](EngineOptions& o) { o.cpu_threads = -1; }).ok());
}

TEST_F(EngineTest, AnswersEveryKindOfBlock) {
  Start();
  for (const DType dtype : kFloatDTypes) {
    const std::string name = "m." + std::string(Name(dtype));
    Send(Serve(name + ".mlp", BlockKind::kMlp, dtype), 5)->ExpectRight();
    const auto norm = Serve(name + ".norm", kNorm, dtype);
    Send(norm, 5)->ExpectRight();
    Send(MakeCall(norm, {RandomRows(dtype, 3, 1), RandomRows(dtype, 3, 2)}))->ExpectRight();
    const auto path = Serve(name + ".path", BlockKind::kFfnPath, dtype);
    Send(path, 64)->ExpectRight();
    Send(MakeCall(path, {RandomRows(dtype, 3, 1), RandomRows(dtype, 3, 2)}))->ExpectRight();
    const auto embed = Serve(name + ".embed", BlockKind::kEmbedding, dtype);
    Send(MakeCall(embed, {Ids<int32_t>({1, 0, kVocabulary - 1})}))->ExpectRight();
    Send(MakeCall(embed, {Ids<int64_t>({7})}))->ExpectRight();
  }
}

TEST_F(EngineTest, SaysWhoAnsweredAndWhereTheTimeWent) {
  Start();
  const auto call = Send(Serve("m.norm", kNorm), 5);
  const Outcome& outcome = call->Await();
  EXPECT_EQ(outcome.device, kCpu);
  EXPECT_GT(outcome.timings.queue, 0);
  EXPECT_GT(outcome.timings.batch, 0);
  EXPECT_GT(outcome.timings.compute, 0);
  EXPECT_EQ(outcome.timings.h2d, 0);
  EXPECT_EQ(outcome.timings.d2h, 0);
  for (const char* phase : {"queue", "batch", "compute"}) {
    EXPECT_EQ(metrics_.Value("fuseblock_phase_duration_seconds_count{block=\"m.norm\",phase=\"" +
                             std::string(phase) + "\"}"),
              1)
        << phase;
  }
  EXPECT_EQ(metrics_.Value("fuseblock_useful_tokens_total{block=\"m.norm\"}"), 5);
}

TEST_F(EngineTest, WhatQueuesUpRunsAsOneBatchWithTheBitsOfEachAlone) {
  Start();
  const auto path = Serve("m.path", BlockKind::kFfnPath);
  const auto first = Occupy(path, kCpu);
  std::vector<CallPtr> calls;
  for (const int64_t tokens : {3, 0, 17, 1, 8}) {
    calls.push_back(Send(path, tokens, static_cast<uint32_t>(tokens)));
  }
  faults_->Release(kCpu);
  for (const auto& call : calls) call->ExpectRight();
  first->ExpectRight();
  EXPECT_EQ(faults_->launches(kCpu), 2);
  EXPECT_EQ(metrics_.Value("fuseblock_batch_requests_count"), 2);
  EXPECT_EQ(metrics_.Value("fuseblock_batch_tokens_sum"), 1 + 29);
}

// Many bytes are gathered by all of the lane's threads, in shares that begin and end anywhere in
// the requests and in the pieces of their payloads.
TEST_F(EngineTest, LongRequestsAreGatheredWhole) {
  options_.batch_tokens_max = options_.request_tokens_max = 40000;
  options_.queue_tokens_max = 80000;
  options_.cpu_threads = 3;
  Start();
  const auto norm = Serve("m.norm", kNorm, DType::kF32);
  const auto busy = Occupy(norm, kCpu);
  std::vector<CallPtr> calls;
  for (const int64_t tokens : {0, 11003, 1, 8009, 0, 3, 13001, 0}) {
    calls.push_back(Send(
        MakeCall(norm, {RandomRows(DType::kF32, tokens, 7), RandomRows(DType::kF32, tokens, 8)})));
  }
  faults_->Release(kCpu);
  busy->ExpectRight();
  for (const auto& call : calls) call->ExpectRight();
  EXPECT_EQ(faults_->launches(kCpu), 2);
}

TEST_F(EngineTest, RequestsOfAnotherFormRunInAnotherBatch) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  const auto embed = Serve("m.embed", BlockKind::kEmbedding);
  Occupy(norm, kCpu);
  std::vector<CallPtr> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(Send(norm, 2, 1));
    calls.push_back(
        Send(MakeCall(norm, {RandomRows(DType::kBF16, 2, 1), RandomRows(DType::kBF16, 2, 2)})));
    calls.push_back(Send(MakeCall(embed, {Ids<int32_t>({3, 4})})));
    calls.push_back(Send(MakeCall(embed, {Ids<int64_t>({5})})));
  }
  faults_->Release(kCpu);
  for (const auto& call : calls) call->ExpectRight();
  EXPECT_EQ(faults_->launches(kCpu), 1 + 4);
}

TEST_F(EngineTest, NoTokensAtAll) {
  Start();
  const auto path = Serve("m.path", BlockKind::kFfnPath);
  const auto call = Send(path, 0);
  call->ExpectRight();
  EXPECT_EQ(faults_->launches(kCpu), 0);
  call->ReleaseOutputs();
  ExpectNothingHeld();
}

TEST_F(EngineTest, OneMaximumOneWithTheMiddleCancelled) {
  Start();
  const auto path = Serve("m.path", BlockKind::kFfnPath);
  const auto running = Occupy(path, kCpu);
  const auto before = Send(path, 1, 1);
  const auto middle = Send(path, 64, 2);
  const auto middle_id = id_;
  const auto after = Send(path, 1, 3);
  engine_->Cancel(middle_id);
  EXPECT_TRUE(middle->answered()) << "at once, while the lane is busy";
  EXPECT_EQ(middle->AwaitRefusal(), Reason::kCancelled);
  EXPECT_TRUE(middle->payload_released());
  engine_->Cancel(middle_id);
  faults_->Release(kCpu);
  before->ExpectRight();
  after->ExpectRight();
  EXPECT_EQ(faults_->launches(kCpu), 2) << "the cancelled one must not have reached the device";
  for (const auto& call : {running, before, after}) call->ReleaseOutputs();
  ExpectNothingHeld();
}

TEST_F(EngineTest, CancelledWhileItRuns) {
  Start();
  const auto path = Serve("m.path", BlockKind::kFfnPath);
  const auto call = Occupy(path, kCpu);
  engine_->Cancel(id_);
  EXPECT_TRUE(call->answered()) << "at once; its rows run on and are dropped";
  EXPECT_EQ(call->AwaitRefusal(), Reason::kCancelled);
  EXPECT_TRUE(call->Await().outputs[0].empty());
  ExpectNothingHeld();
  faults_->Release(kCpu);
  EXPECT_EQ(call->answers(), 1);
}

TEST_F(EngineTest, ThePayloadIsLetGoOnceGathered) {
  Start();
  const auto path = Serve("m.path", BlockKind::kFfnPath);
  const auto call = Occupy(path, kCpu);
  EXPECT_TRUE(call->payload_released()) << "gathered before the launch";
  const auto queued = Send(path, 1);
  EXPECT_FALSE(queued->payload_released());
  faults_->Release(kCpu);
  queued->ExpectRight();
}

TEST_F(EngineTest, RefusesExactlyNOfMAndCountsThem) {
  options_.queue_tokens_max = 65;
  Start();
  const auto norm = Serve("m.norm", kNorm);
  const auto running = Occupy(norm, kCpu);
  std::vector<CallPtr> calls;
  for (int i = 0; i < 25; ++i) calls.push_back(Send(norm, 8, 1));
  int refused = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i < 8) {
      EXPECT_FALSE(calls[i]->answered());
      continue;
    }
    ASSERT_TRUE(calls[i]->answered()) << "a refusal comes before Submit returns";
    EXPECT_EQ(calls[i]->AwaitRefusal(), Reason::kQueueFull);
    EXPECT_GT(RetryAfterOf(calls[i]->Await().status), absl::ZeroDuration());
    ++refused;
  }
  EXPECT_EQ(refused, 17);
  EXPECT_EQ(Shed("m.norm", "queue_full"), 17);
  EXPECT_EQ(metrics_.Value("fuseblock_queue_tokens"), 64);
  EXPECT_EQ(metrics_.Value("fuseblock_inflight_requests"), 9);
  faults_->Release(kCpu);
  running->ReleaseOutputs();
  for (size_t i = 0; i < 8; ++i) calls[i]->ExpectRight();
}

TEST_F(EngineTest, BytesAreBoundedToo) {
  // 64 tokens of BF16 in and out.
  options_.queue_bytes_max = 64 * 2 * kHidden * 2;
  Start();
  const auto norm = Serve("m.norm", kNorm);
  const auto running = Occupy(norm, kCpu);
  const auto fits = Send(norm, 63);
  EXPECT_EQ(Send(norm, 1)->AwaitRefusal(), Reason::kMemory);
  EXPECT_EQ(Shed("m.norm", "memory"), 1);
  const auto both =
      MakeCall(norm, {RandomRows(DType::kBF16, 33, 1), RandomRows(DType::kBF16, 33, 2)});
  EXPECT_EQ(Send(both)->AwaitRefusal(), Reason::kTooLarge) << "could never be admitted";
  faults_->Release(kCpu);
  fits->ExpectRight();
}

TEST_F(EngineTest, ABlocksBudgetLeavesTheOthersTheirs) {
  Start();
  const auto bounded = testing::MakeBlock("m.bounded", kNorm, DType::kBF16, block_devices_);
  Budget budget;
  budget.requests_max = 2;
  ASSERT_EQ(engine_->Prepare(*bounded, budget), absl::OkStatus());
  const auto other = Serve("m.other", kNorm);
  const auto running = Occupy(other, kCpu);
  const auto first = Send(bounded, 1);
  const auto second = Send(bounded, 1);
  EXPECT_EQ(Send(bounded, 1)->AwaitRefusal(), Reason::kQueueFull);
  EXPECT_EQ(Shed("m.bounded", "queue_full"), 1);
  const auto free = Send(other, 1);
  faults_->Release(kCpu);
  for (const auto& call : {running, first, second, free}) call->ExpectRight();
}

TEST_F(EngineTest, QuotasAreCountedAsClientsSeeThem) {
  options_.tenant_quota.tokens_max = 10;
  options_.tenant_quotas["large"].requests_max = 3;
  Start();
  const auto norm = Serve("m.norm", kNorm);
  Occupy(norm, kCpu);
  const auto send = [&](const std::string& tenant, int64_t tokens) {
    const auto call = MakeCall(norm, {RandomRows(DType::kBF16, tokens, 1)});
    call->tenant = tenant;
    return Send(call);
  };
  std::vector<CallPtr> admitted;
  int refused = 0;
  for (int i = 0; i < 12; ++i) {
    for (const char* tenant : {"a", "b", "large"}) {
      const auto call = send(tenant, 3);
      if (!call->answered()) {
        admitted.push_back(call);
        continue;
      }
      EXPECT_EQ(call->AwaitRefusal(), Reason::kQuota);
      ++refused;
    }
  }
  EXPECT_EQ(admitted.size(), 9u);
  EXPECT_EQ(refused, 27);
  EXPECT_EQ(Shed("m.norm", "quota"), 27);
  faults_->Release(kCpu);
  for (const auto& call : admitted) {
    call->ExpectRight();
    call->ReleaseOutputs();
  }
  send("a", 10)->ExpectRight();
}

TEST_F(EngineTest, AtTheTokenLimitOfARequestAndOneAbove) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  Send(norm, 64)->ExpectRight();
  EXPECT_EQ(Send(norm, 65)->AwaitRefusal(), Reason::kTooLarge);
}

TEST_F(EngineTest, TheBudgetIsHeldUntilTheOutputsAreLetGo) {
  options_.queue_tokens_max = 64;
  Start();
  const auto norm = Serve("m.norm", kNorm);
  const auto first = Send(norm, 64);
  first->ExpectRight();
  EXPECT_EQ(Send(norm, 1)->AwaitRefusal(), Reason::kQueueFull);
  first->ReleaseOutputs();
  Send(norm, 64)->ExpectRight();
}

TEST_F(EngineTest, AQueuedRequestExpiresWhileTheLaneIsBusy) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  const auto running = Occupy(norm, kCpu);
  const auto call = MakeCall(norm, {RandomRows(DType::kBF16, 4, 1)});
  call->deadline = absl::Now() + absl::Milliseconds(20);
  Send(call);
  EXPECT_EQ(call->AwaitRefusal(),
            Reason::kExpired);  // would wait for ever if the lane had to end first
  EXPECT_FALSE(running->answered());
  EXPECT_TRUE(call->payload_released());
  EXPECT_EQ(Shed("m.norm", "expired"), 1);
  EXPECT_EQ(metrics_.Value("fuseblock_queue_tokens"), 0);
  EXPECT_EQ(metrics_.Value("fuseblock_inflight_requests"), 1);
  faults_->Release(kCpu);
  running->ExpectRight();
  EXPECT_EQ(faults_->launches(kCpu), 1);
}

TEST_F(EngineTest, ADeadlineThatIsPastOnArrival) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  for (const absl::Time deadline : {absl::Now() - absl::Seconds(1), absl::InfinitePast()}) {
    const auto call = MakeCall(norm, {RandomRows(DType::kBF16, 4, 1)});
    call->deadline = deadline;
    EXPECT_EQ(Send(call)->AwaitRefusal(), Reason::kExpired);
    EXPECT_EQ(id_, 0u);
  }
  EXPECT_EQ(faults_->launches(kCpu), 0);
}

TEST_F(EngineTest, OneBadTokenIdFailsOnlyItsRequest) {
  Start();
  const auto embed = Serve("m.embed", BlockKind::kEmbedding);
  Occupy(Serve("m.norm", kNorm), kCpu);
  const auto good = Send(MakeCall(embed, {Ids<int32_t>({1, 2})}));
  const auto bad = Send(MakeCall(embed, {Ids<int32_t>({3, kVocabulary, 4})}));
  const auto negative = Send(MakeCall(embed, {Ids<int32_t>({-1})}));
  const auto last = Send(MakeCall(embed, {Ids<int32_t>({5})}));
  faults_->Release(kCpu);
  good->ExpectRight();
  last->ExpectRight();
  EXPECT_EQ(bad->AwaitRefusal(), Reason::kBadTensor);
  EXPECT_EQ(bad->Await().status.message(), "ids[1]: expected 0 <= id < 50, got 50");
  EXPECT_EQ(negative->AwaitRefusal(), Reason::kBadTensor);
}

TEST_F(EngineTest, InputsThatDoNotFitTheBlockAreRefused) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  const auto embed = Serve("m.embed", BlockKind::kEmbedding);
  const auto refusal = [&](const std::shared_ptr<ServedBlock>& block, auto change) {
    const auto call = MakeCall(block, {RandomRows(DType::kBF16, 4, 1)});
    Request request = call->MakeRequest(call);
    change(request);
    EXPECT_EQ(engine_->Submit(std::move(request)), 0u);
    EXPECT_EQ(call->AwaitRefusal(), Reason::kBadTensor);
    return std::string(call->Await().status.message());
  };
  EXPECT_EQ(refusal(norm, [](Request& r) { r.tokens = 5; }), "x: expected 5 x 48 bytes, got 192");
  EXPECT_EQ(refusal(norm, [](Request& r) { r.tokens = 3; }), "x: expected 3 x 48 bytes, got 192");
  EXPECT_EQ(refusal(norm, [](Request& r) { r.tokens = -1; }), "x: expected -1 x 48 bytes, got 192");
  EXPECT_EQ(refusal(norm, [](Request& r) { r.inputs[0].pieces.pop_back(); }),
            "x: expected 4 x 48 bytes, got 108");
  EXPECT_EQ(refusal(norm, [](Request& r) { r.inputs[0].dtype = DType::kF16; }),
            "x: expected BF16, got FP16");
  EXPECT_EQ(refusal(norm, [](Request& r) { r.inputs[0].present = false; }), "x: missing");
  EXPECT_EQ(refusal(embed, [](Request&) {}), "ids: expected INT32 or INT64, got BF16");
  ExpectNothingHeld();
}

TEST_F(EngineTest, ABlockThatWasNotPreparedIsABug) {
  Start();
  const auto call = Send(testing::MakeBlock("m.norm", kNorm), 1);
  EXPECT_EQ(call->AwaitRefusal(), Reason::kInternal);
}

TEST_F(EngineTest, BlocksComeAndGoWhileOthersRun) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  std::vector<CallPtr> running;
  for (int i = 0; i < 20; ++i) {
    running.push_back(Send(norm, 3));
    // Larger from time to time, so that the lane must grow between two batches.
    const auto block = Serve("m.path", BlockKind::kFfnPath, i < 10 ? DType::kBF16 : DType::kF32);
    Send(block, 9)->ExpectRight();
  }
  for (const auto& call : running) {
    call->ExpectRight();
    call->ReleaseOutputs();
  }
}

TEST_F(EngineTest, UnloadedWhileManyRequestsWait) {
  Start();
  auto path = Serve("m.path", BlockKind::kFfnPath);
  const std::weak_ptr<ServedBlock> block = path;
  Occupy(path, kCpu);
  std::vector<CallPtr> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(Send(path, i % 5, static_cast<uint32_t>(i)));
  path.reset();  // as the registry lets go of it
  faults_->Release(kCpu);
  for (const auto& call : calls) call->ExpectRight();
  calls.clear();
  ExpectNothingHeld();
  EXPECT_TRUE(block.expired());
  EXPECT_EQ(metrics_.Value("fuseblock_weights_bytes{block=\"m.path\",device=\"cpu\"}"), 0);
}

TEST_F(EngineTest, WeightsAreCountedWhileTheyAreHeld) {
  Start();
  auto first = Serve("m.norm", kNorm);
  const std::string series = "fuseblock_weights_bytes{block=\"m.norm\",device=\"cpu\"}";
  const double bytes = metrics_.Value(series);
  EXPECT_EQ(bytes, static_cast<double>(first->blocks[0]->weight_bytes()));
  auto second = Serve("m.norm", kNorm);  // another revision
  EXPECT_EQ(metrics_.Value(series), 2 * bytes);
  first.reset();
  EXPECT_EQ(metrics_.Value(series), bytes);
  second.reset();
  EXPECT_EQ(metrics_.Value(series), 0);
}

TEST_F(EngineTest, PrepareThatFindsNoMemoryShowsTheSum) {
  Start();
  faults_->RefuseMemory(kCpu);
  const auto block = testing::MakeBlock("m.norm", kNorm);
  const absl::Status status = engine_->Prepare(*block);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              ::testing::MatchesRegex("m.norm: a lane of cpu needs [0-9]+ bytes to gather \\+ 3 x "
                                      "[0-9]+ for outputs \\+ [0-9]+ on the device = [0-9]+ bytes: "
                                      ".*"));
  EXPECT_EQ(block->engine, nullptr);
}

TEST_F(EngineTest, MemoryIsTheSumOfItsTermsAndOverTheLimitIsRefused) {
  options_.devices = {kCuda0, kCpu};
  options_.lanes_per_device = 2;
  Start();
  const auto mlp = Serve("m.mlp", BlockKind::kMlp);
  const std::vector<DeviceMemory> plan = engine_->Memory();
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].lanes, 2);
  EXPECT_EQ(plan[0].weights, static_cast<int64_t>(mlp->blocks[0]->weight_bytes()));
  EXPECT_EQ(plan[0].tensors, 2 * 64 * kHidden * 2);
  EXPECT_EQ(plan[0].staging_in, 64 * kHidden * 2);
  EXPECT_EQ(plan[0].staging_out, 3 * 64 * kHidden * 2);
  EXPECT_GT(plan[0].workspace, 0);
  EXPECT_GT(plan[0].captured, plan[0].tensors / 2);
  EXPECT_EQ(plan[1].lanes, 1);
  EXPECT_EQ(plan[1].tensors, 0);
  EXPECT_EQ(plan[1].captured, 0);
  EXPECT_EQ(engine_->Devices()[0].staging_bytes, static_cast<size_t>(plan[0].HostBytes()));

  const int64_t device = plan[0].DeviceBytes();
  const int64_t host = plan[0].HostBytes() + plan[1].HostBytes();
  for (const auto& [device_max, host_max] :
       {std::pair(device, host), std::pair(device - 1, host), std::pair(device, host - 1)}) {
    options_.device_bytes_max = device_max;
    options_.host_bytes_max = host_max;
    Start();
    const absl::Status status = engine_->Prepare(*mlp);
    if (device_max == device && host_max == host) {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr(device_max < device ? DescribeDeviceBytes(plan[0])
                                                         : DescribeHostBytes(plan[1])));
  }
}

TEST_F(EngineTest, WhatIsUnloadedIsNoLongerInTheSum) {
  Start();
  auto path = Serve("m.path", BlockKind::kFfnPath);
  const auto norm = Serve("m.norm", kNorm);
  EXPECT_GT(engine_->Memory()[0].weights, static_cast<int64_t>(norm->blocks[0]->weight_bytes()));
  path.reset();
  EXPECT_EQ(engine_->Memory()[0].weights, static_cast<int64_t>(norm->blocks[0]->weight_bytes()));
}

TEST_F(EngineTest, LanesAreSizedOnceForTheLargestBlock) {
  Start();
  Serve("m.path", BlockKind::kFfnPath, DType::kF32);
  const DeviceStatus before = engine_->Devices()[0];
  // x and residual in, three slabs of y: 64 rows of 24 floats each.
  EXPECT_EQ(before.staging_bytes, 64u * kHidden * 4 * (2 + 3));
  EXPECT_GT(before.workspace_bytes, 0u);
  Serve("m.mlp", BlockKind::kMlp, DType::kBF16);
  const DeviceStatus after = engine_->Devices()[0];
  EXPECT_EQ(after.staging_bytes, before.staging_bytes);
  EXPECT_EQ(metrics_.Value(
                "fuseblock_memory_bytes{device=\"cpu\",pool=\"staging_in\",state=\"reserved\"}"),
            64 * kHidden * 4 * 2);
}

// On a GPU small batches are filled up to a bucket: nobody sees it but the counters, and a
// request's bits do not depend on the bucket that it came to lie in.
TEST_F(EngineTest, ABatchIsPaddedToItsBucketAndNobodySeesIt) {
  options_.devices = {kCuda0};
  options_.batch_tokens_max = 300;
  options_.request_tokens_max = 300;
  options_.queue_tokens_max = 100000;
  Start();
  int64_t useful = 0, padded = 0;
  for (const BlockKind kind : {BlockKind::kFfnPath, kNorm, BlockKind::kMlp}) {
    const auto block = Serve("m." + std::string(Name(kind)), kind);
    for (const int64_t tokens : {1, 2, 3, 5, 8, 9, 17, 33, 64, 100, 128, 129, 300}) {
      // The same first row in every bucket.
      const testing::RowTensor longest = RandomRows(DType::kBF16, 300, 7);
      testing::RowTensor x{DType::kBF16, {tokens, kHidden}, longest.bytes};
      x.bytes.resize(static_cast<size_t>(tokens * kHidden * 2));
      Send(MakeCall(block, {x}))->ExpectRight();
      useful += tokens;
      const int bucket = BucketOf(tokens);
      padded += bucket < 0 ? 0 : kTokenBuckets[bucket] - tokens;
      if (kind == BlockKind::kMlp) continue;
      Send(MakeCall(block, {x, RandomRows(DType::kBF16, tokens, 8)}))->ExpectRight();
      useful += tokens;
      padded += bucket < 0 ? 0 : kTokenBuckets[bucket] - tokens;
    }
  }
  const auto embed = Serve("m.embed", BlockKind::kEmbedding);
  Send(MakeCall(embed, {Ids<int64_t>({7, 8, 9})}))->ExpectRight();
  const auto total = [&](const std::string& series) {
    double sum = 0;
    for (const char* block : {"m.ffn_path", "m.norm_residual", "m.mlp", "m.embed"}) {
      sum += metrics_.Value("fuseblock_" + series + "{block=\"" + block + "\"}");
    }
    return sum;
  };
  EXPECT_EQ(total("useful_tokens_total"), useful + 3);
  EXPECT_EQ(total("padded_tokens_total"), padded + 1);
}

// What a request needs of device, pinned or large host memory is there before it comes.
TEST_F(EngineTest, TrafficAllocatesNoBuffers) {
  options_.devices = {kCuda0, kCpu};
  options_.lanes_per_device = 2;
  Start();
  const std::shared_ptr<ServedBlock> blocks[] = {Serve("m.path", BlockKind::kFfnPath),
                                                 Serve("m.norm", kNorm),
                                                 Serve("m.mlp", BlockKind::kMlp)};
  const int64_t before = Buffer::allocations();
  std::vector<CallPtr> calls;
  for (int i = 0; i < 300; ++i) {
    calls.push_back(Send(blocks[i % 3], i % 65, static_cast<uint32_t>(i)));
    if (i % 10 == 0) {
      for (const auto& call : calls) {
        EXPECT_TRUE(call->Await().status.ok());
        call->ReleaseOutputs();
      }
      calls.clear();
    }
  }
  for (const auto& call : calls) EXPECT_TRUE(call->Await().status.ok());
  EXPECT_EQ(Buffer::allocations(), before);
  Serve("m.larger", BlockKind::kMlp, DType::kF32);
  EXPECT_GT(Buffer::allocations(), before) << "the count counts";
}

}  // namespace
}  // namespace fuseblock
