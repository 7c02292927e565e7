// Blocks that are prepared beside traffic: what waits for the lane meanwhile can still expire, be
// cancelled or go elsewhere, and a device that hangs in the preparation is given up. Time is
// simulated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "server/engine/held_weights.h"
#include "server/engine/memory_plan.h"
#include "server/engine/placement.h"
#include "tests/unit/server/engine/engine_fixture.h"
#include "tests/unit/server/engine/simulated_clock.h"

namespace fuseblock {
namespace {

using testing::EngineTest;
using ::testing::HasSubstr;
using testing::MakeBlock;
using testing::RandomRows;
using testing::SimulatedClock;

constexpr BlockKind kPath = BlockKind::kFfnPath;
constexpr absl::Duration kWatchdog = absl::Seconds(10);

class EngineLoadTest : public EngineTest {
 protected:
  EngineLoadTest() {
    faults_ = std::make_shared<Faults>(clock_);
    options_.make_lane = WithFaults(SimulatedDevices(), faults_);
    options_.watchdog = kWatchdog;
    options_.clock = &clock_;
  }
  ~EngineLoadTest() override {
    for (const Device device : options_.devices) faults_->Release(device);
    engine_.reset();
    for (const Device device : options_.devices) faults_->AwaitNoneHeld(device);  // by the clock
  }
  CallPtr Due(const std::shared_ptr<ServedBlock>& block, absl::Duration in, int64_t tokens) {
    auto call = MakeCall(block, {RandomRows(block->spec.dtype, tokens, 3)});
    call->deadline = absl::Now() + in;
    return call;
  }
  DeviceStatus Gpu() const { return engine_->Devices()[0]; }
  double TokensRun() { return metrics_.Value("fuseblock_useful_tokens_total{block=\"m.path\"}"); }

  SimulatedClock clock_;
};

TEST_F(EngineLoadTest, WhatWaitsForALoadCanExpireAndBeCancelled) {
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCpu, Fault::kHang, 1, {}, Step::kReserve);
  std::thread loader([&] { Serve("m.other", BlockKind::kMlp); });
  faults_->AwaitHeld(kCpu, 1);
  const auto expires = Send(Due(path, absl::Minutes(1), 3));
  const auto cancelled = Send(path, 4);
  engine_->Cancel(id_);
  const auto stays = Send(path, 5);
  EXPECT_EQ(cancelled->AwaitRefusal(), Reason::kCancelled);
  clock_.Advance(absl::Minutes(2));
  EXPECT_EQ(expires->AwaitRefusal(), Reason::kExpired) << "while the load goes on";
  EXPECT_EQ(metrics_.Value("fuseblock_inflight_requests"), 1);
  EXPECT_FALSE(stays->answered());
  faults_->Release(kCpu);
  loader.join();
  stays->ExpectRight();
  EXPECT_EQ(faults_->launches(kCpu), 1);
  EXPECT_EQ(TokensRun(), 5) << "what had ended must not reach the device";
  stays->ReleaseOutputs();
  ExpectNothingHeld();
}

TEST_F(EngineLoadTest, AnotherLaneServesWhileOneGrows) {
  options_.devices = {kCuda0};
  options_.lanes_per_device = 2;
  options_.fallback = FallbackPolicy::kRefuse;
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCuda0, Fault::kHang, 1, {}, Step::kReserve);
  std::thread loader([&] { Serve("m.other", BlockKind::kMlp); });
  faults_->AwaitHeld(kCuda0, 1);
  for (int i = 0; i < 20; ++i) Send(path, 1 + i, static_cast<uint32_t>(i))->ExpectRight();
  faults_->Release(kCuda0);
  loader.join();
}

// A batch that failed on the GPU waits for the CPU: of its requests one is cancelled, one expires.
TEST_F(EngineLoadTest, WhatWaitsToBeTakenOverCanExpireAndBeCancelled) {
  options_.devices = {kCuda0, kCpu};
  Start();
  const auto path = Serve("m.path", kPath);
  const auto first = Occupy(path, kCuda0);
  const auto cancelled = Send(path, 7, 1);
  const auto cancel = id_;
  const auto stays = Send(path, 3, 2);
  const auto expires = Send(Due(path, absl::Minutes(1), 5));
  const auto stays_too = Send(path, 4, 4);
  faults_->Hold(kCpu);
  faults_->Inject(kCuda0, Fault::kOutOfMemory, 2);
  faults_->Release(kCuda0);
  faults_->AwaitHeld(kCpu, 1);
  while (faults_->launches(kCuda0) < 2) std::this_thread::yield();
  engine_->Cancel(cancel);
  EXPECT_EQ(cancelled->AwaitRefusal(), Reason::kCancelled);
  clock_.Advance(absl::Minutes(2));
  EXPECT_EQ(expires->AwaitRefusal(), Reason::kExpired) << "while the CPU is busy";
  faults_->Release(kCpu);
  for (const auto& call : {first, stays, stays_too}) {
    call->ExpectRight();
    EXPECT_EQ(call->Await().device, kCpu);
  }
  EXPECT_EQ(TokensRun(), 1 + 3 + 4);
  EXPECT_EQ(metrics_.Value("fuseblock_fallback_total{block=\"m.path\",cause=\"out_of_memory\"}"),
            3);
  for (const auto& call : {first, stays, stays_too}) call->ReleaseOutputs();
  ExpectNothingHeld();
}

// Nothing of it is left when the CPU comes to it.
TEST_F(EngineLoadTest, ABatchThatNobodyWaitsForIsNotTakenOver) {
  options_.devices = {kCuda0, kCpu};
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCuda0, Fault::kHang);
  const auto hung = Send(Due(path, kWatchdog / 2, 3));
  faults_->AwaitHeld(kCuda0, 1);
  clock_.Advance(kWatchdog);
  EXPECT_EQ(hung->AwaitRefusal(), Reason::kExpired) << "long before the CPU could have it";
  EXPECT_EQ(hung->answers(), 1);
  Send(path, 2)->ExpectRight();
  EXPECT_EQ(faults_->launches(kCpu), 1);
}

struct HangCase {
  Step step;
  const char* what;
};

class EngineHungLoadTest : public EngineLoadTest, public ::testing::WithParamInterface<HangCase> {};

TEST_P(EngineHungLoadTest, TheLoadFailsAndTheDeviceIsQuarantined) {
  options_.devices = {kCuda0, kCpu};
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCuda0, Fault::kHang, 1, {}, GetParam().step);
  auto other = MakeBlock("m.other", BlockKind::kMlp);
  const std::weak_ptr<const Block> weights = other->blocks.front();
  const int64_t held = engine_->Memory()[0].weights;
  absl::Status status;
  std::thread loader([&] { status = engine_->Prepare(*other, {}, absl::Hours(1)); });
  faults_->AwaitHeld(kCuda0, 1);
  clock_.Advance(kWatchdog - absl::Nanoseconds(1));
  EXPECT_EQ(Gpu().health, DeviceHealth::kHealthy);
  clock_.Advance(absl::Nanoseconds(1));
  loader.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("m.other: cuda:0: a lane hangs on " + std::string(GetParam().what)));
  EXPECT_EQ(other->engine, nullptr);
  EXPECT_EQ(Gpu().health, DeviceHealth::kQuarantined);
  EXPECT_EQ(Gpu().stuck_lanes, 1);
  other.reset();
  EXPECT_FALSE(weights.expired()) << "to free them may take as long as the lane hangs";
  EXPECT_GT(engine_->Memory()[0].weights, held);
  EXPECT_EQ(ReasonOf(GpusNow(*engine_, 0).status()), Reason::kDeviceLost) << "nowhere to load to";

  const auto meanwhile = Send(path, 3);
  meanwhile->ExpectRight();
  EXPECT_EQ(meanwhile->Await().device, kCpu);
  const auto during = Serve("m.during", BlockKind::kMlp);  // does not wait for the lane
  faults_->Release(kCuda0);
  while (engine_->HasStuckLane()) std::this_thread::yield();
  EXPECT_TRUE(weights.expired());
  EXPECT_TRUE(GpusNow(*engine_, 0).ok());
  clock_.Advance(absl::Seconds(1));
  while (Gpu().health != DeviceHealth::kHealthy) std::this_thread::yield();
  for (const auto& block : {path, during, Serve("m.other", BlockKind::kMlp)}) {
    const auto call = Send(block, 60);
    call->ExpectRight();
    EXPECT_EQ(call->Await().device, kCuda0);
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, EngineHungLoadTest,
                         ::testing::Values(HangCase{Step::kReserve, "growing its memory"},
                                           HangCase{Step::kCapture, "capturing m.other"},
                                           HangCase{Step::kRun, "measuring m.other"}));

// Whoever drops a block does not wait for a lane that hangs: a revision that was unloaded goes when
// the lane has come back.
TEST_F(EngineLoadTest, WhatIsDroppedWhileALaneHangsIsFreedByTheLane) {
  options_.devices = {kCuda0, kCpu};
  Start();
  const auto path = Serve("m.path", kPath);
  auto dropped = Serve("m.dropped", BlockKind::kMlp);
  const std::weak_ptr<const Block> weights = dropped->blocks.front();
  faults_->Inject(kCuda0, Fault::kHang);
  const auto hung = Send(path, 3);
  faults_->AwaitHeld(kCuda0, 1);
  clock_.Advance(kWatchdog);
  hung->ExpectRight();
  dropped.reset();
  EXPECT_FALSE(weights.expired());
  EXPECT_GT(metrics_.Value("fuseblock_weights_bytes{block=\"m.dropped\",device=\"cpu\"}"), 0);
  faults_->Release(kCuda0);
  while (engine_->HasStuckLane()) std::this_thread::yield();
  EXPECT_TRUE(weights.expired());
  EXPECT_EQ(metrics_.Value("fuseblock_weights_bytes{block=\"m.dropped\",device=\"cpu\"}"), 0);
}

TEST(HeldWeightsTest, OnlyADeviceThatHangsKeepsWhatIsLetGo) {
  Metrics metrics;
  BlockMetrics* const block = metrics.Block("m.mlp");
  const auto served = MakeBlock("m.mlp", BlockKind::kMlp);
  const auto weights = [&] {
    return std::make_shared<const CountedWeights>(served->blocks[0], block);
  };
  auto held = std::make_unique<HeldWeights>(2);
  std::weak_ptr<const CountedWeights> of[2];
  const auto let_go = [&] {
    for (size_t device = 0; device < 2; ++device) {
      const auto share = weights();
      of[device] = share;
      held->Take(device, *share);
      held->LetGo(device, {share, {}});
    }
  };
  let_go();
  EXPECT_TRUE(of[0].expired() && of[1].expired());
  EXPECT_EQ(held->bytes(0), 0);
  for (int lane = 0; lane < 2; ++lane) held->LaneHangs(0);
  let_go();
  EXPECT_FALSE(of[0].expired());
  EXPECT_TRUE(of[1].expired());
  EXPECT_EQ(held->bytes(0), static_cast<int64_t>(served->blocks[0]->weight_bytes()));
  EXPECT_EQ(held->bytes(1), 0);
  held->LaneCameBack(0);
  EXPECT_FALSE(of[0].expired()) << "the other one still hangs";
  held->LaneCameBack(0);
  EXPECT_TRUE(of[0].expired());
  EXPECT_EQ(held->bytes(0), 0);
  held->LaneHangs(0);
  let_go();
  held.reset();
  EXPECT_FALSE(of[0].expired()) << "the lane is not back yet, and will find nobody";
  EXPECT_TRUE(of[1].expired());
}

TEST_F(EngineLoadTest, ADeviceThatIsLostInALoadIsTakenOutOfService) {
  options_.devices = {kCuda0, kCpu};
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCuda0, Fault::kDeviceLost, 1, {}, Step::kCapture);
  const auto other = MakeBlock("m.other", BlockKind::kMlp);
  EXPECT_TRUE(absl::IsUnavailable(engine_->Prepare(*other)));
  EXPECT_EQ(Gpu().health, DeviceHealth::kLost);
  Send(path, 3)->ExpectRight();
}

}  // namespace
}  // namespace fuseblock
