// Requests longer than a batch: computed in chunks, answered as if they had been computed at once.
#include <gtest/gtest.h>

#include "tests/unit/server/engine/engine_fixture.h"

namespace fuseblock {
namespace {

using testing::EngineTest;
using testing::Ids;
using testing::kVocabulary;
using testing::RandomRows;

constexpr BlockKind kPath = BlockKind::kFfnPath;

class EngineChunksTest : public EngineTest {
 protected:
  EngineChunksTest() { options_.request_tokens_max = 1000; }

  double QueueTokens() { return metrics_.Value("fuseblock_queue_tokens"); }
  double Inflight() { return metrics_.Value("fuseblock_inflight_requests"); }
  // When every launch that was still to come has come.
  int LaunchesAtTheEnd(Device device) {
    faults_->Release(device);
    engine_.reset();
    return faults_->launches(device);
  }
};

TEST_F(EngineChunksTest, HaveTheBitsOfTheWhole) {
  options_.devices = {kCuda0, kCuda1, kCpu};
  options_.lanes_per_device = 2;
  Start();
  for (const DType dtype : kFloatDTypes) {
    const std::string name = "m." + std::string(Name(dtype));
    const auto path = Serve(name + ".path", kPath, dtype);
    const auto norm = Serve(name + ".norm", BlockKind::kNormResidual, dtype);
    for (const int64_t tokens : {63, 64, 65, 128, 129, 500, 1000}) {
      const int before = faults_->launches(kCuda0) + faults_->launches(kCuda1);
      const auto call = Send(path, tokens, static_cast<uint32_t>(tokens));
      call->ExpectRight();
      call->ReleaseOutputs();
      EXPECT_EQ(faults_->launches(kCuda0) + faults_->launches(kCuda1) - before, (tokens + 63) / 64);
    }
    const auto two = Send(MakeCall(norm, {RandomRows(dtype, 200, 1), RandomRows(dtype, 200, 2)}));
    two->ExpectRight();
    EXPECT_EQ(two->Await().outputs[1].size(), 4u);
    two->ReleaseOutputs();
  }
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 300; ++i) ids.push_back(i % kVocabulary);
  const auto embed = Serve("m.embed", BlockKind::kEmbedding);
  const auto looked_up = Send(MakeCall(embed, {Ids(ids)}));
  looked_up->ExpectRight();
  looked_up->ReleaseOutputs();
  ids[170] = kVocabulary;
  EXPECT_EQ(Send(MakeCall(embed, {Ids(ids)}))->AwaitRefusal(), Reason::kBadTensor);
  ExpectNothingHeld();
}

TEST_F(EngineChunksTest, ErrorsCallATokenByItsPlaceInTheRequest) {
  Start();
  const auto embed = Serve("m.embed", BlockKind::kEmbedding);
  std::vector<int64_t> ids(300, 1);
  ids[170] = kVocabulary;
  const auto call = Send(MakeCall(embed, {Ids(ids)}));
  EXPECT_EQ(call->AwaitRefusal(), Reason::kBadTensor);
  EXPECT_EQ(call->Await().status.message(), "ids[170]: expected 0 <= id < 50, got 50");
}

TEST_F(EngineChunksTest, AShortRequestWaitsForOneChunkOnly) {
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Hold(kCpu);
  const auto longest = Send(path, 900);
  faults_->AwaitHeld(kCpu, 1);
  const auto call = MakeCall(path, {RandomRows(DType::kBF16, 1, 1)});
  Request request = call->MakeRequest(call);
  int launches = 0;
  request.done = [&, inner = std::move(request.done)](Outcome outcome) mutable {
    launches = faults_->launches(kCpu);  // on the only lane's own thread
    EXPECT_FALSE(longest->answered());
    std::move(inner)(std::move(outcome));
  };
  engine_->Submit(std::move(request));
  faults_->Release(kCpu);
  call->ExpectRight();
  EXPECT_EQ(launches, 2) << "the chunk that ran, and its own batch";
  longest->ExpectRight();
}

TEST_F(EngineChunksTest, CancelledBetweenChunks) {
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Hold(kCpu);
  const auto call = Send(path, 1000);
  faults_->AwaitHeld(kCpu, 1);
  EXPECT_EQ(QueueTokens(), 1000 - 64);
  engine_->Cancel(id_);
  ASSERT_TRUE(call->answered()) << "at once, while its chunk runs";
  EXPECT_EQ(call->AwaitRefusal(), Reason::kCancelled);
  EXPECT_EQ(QueueTokens(), 0);
  EXPECT_EQ(Inflight(), 0);
  EXPECT_EQ(LaunchesAtTheEnd(kCpu), 1);
  EXPECT_TRUE(call->payload_released());
  EXPECT_EQ(call->answers(), 1);
}

TEST_F(EngineChunksTest, ExpiredBetweenChunks) {
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Hold(kCpu);
  const auto call = MakeCall(path, {RandomRows(DType::kBF16, 1000, 1)});
  call->deadline = absl::Now() + absl::Milliseconds(20);
  Send(call);
  faults_->AwaitHeld(kCpu, 1);
  EXPECT_EQ(call->AwaitRefusal(), Reason::kExpired) << "while its chunk runs";
  EXPECT_EQ(Inflight(), 0);
  EXPECT_EQ(Shed("m.path", "expired"), 1);
  EXPECT_EQ(LaunchesAtTheEnd(kCpu), 1);
  EXPECT_EQ(call->answers(), 1);
}

TEST_F(EngineChunksTest, AChunkThatFailsEndsTheRequest) {
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCpu, Fault::kLaunchFailure);
  EXPECT_EQ(Send(path, 1000)->AwaitRefusal(), Reason::kInternal);
  ExpectNothingHeld();
  EXPECT_EQ(LaunchesAtTheEnd(kCpu), 1);
}

// CPU and GPU differ in bits: no answer is made of both.
TEST_F(EngineChunksTest, StartsOverWhenAnotherKindOfDeviceTakesOver) {
  options_.devices = {kCuda0, kCpu};
  options_.lanes_per_device = 2;
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Hold(kCuda0);
  const auto call = Send(path, 200);
  faults_->AwaitHeld(kCuda0, 2);
  faults_->Inject(kCuda0, Fault::kLaunchFailure);  // of the two, one fails and one succeeds
  faults_->Release(kCuda0);
  call->ExpectRight();
  EXPECT_EQ(call->Await().device, kCpu);
  call->ReleaseOutputs();
  ExpectNothingHeld();
  EXPECT_GE(LaunchesAtTheEnd(kCpu), 4) << "all four chunks on the CPU";
  // A lane may have had a chunk of the first round until now.
  EXPECT_TRUE(call->payload_released());
}

// Answers that nobody reads must not stop the lanes, long ones neither.
TEST_F(EngineChunksTest, SlowReadersOfLongAnswers) {
  options_.queue_tokens_max = 10000;
  Start();
  const auto path = Serve("m.path", kPath);
  std::vector<CallPtr> held;
  for (int i = 0; i < 8; ++i) {
    held.push_back(Send(path, 1000, static_cast<uint32_t>(i)));
    held.push_back(Send(path, 3, static_cast<uint32_t>(i)));
  }
  for (const auto& call : held) call->ExpectRight();
  for (const auto& call : held) call->ExpectRight();  // still the same bytes
  for (const auto& call : held) call->ReleaseOutputs();
  ExpectNothingHeld();
  EXPECT_EQ(
      metrics_.Value("fuseblock_memory_bytes{device=\"cpu\",pool=\"staging_out\",state=\"used\"}"),
      0);
}

TEST_F(EngineChunksTest, PhasesAreCountedOnceARequest) {
  Start();
  const auto call = Send(Serve("m.path", kPath), 1000);
  call->ExpectRight();
  EXPECT_GT(call->Await().timings.compute, 0);
  for (const char* phase : {"queue", "batch", "compute"}) {
    EXPECT_EQ(metrics_.Value("fuseblock_phase_duration_seconds_count{block=\"m.path\",phase=\"" +
                             std::string(phase) + "\"}"),
              1)
        << phase;
  }
}

}  // namespace
}  // namespace fuseblock
