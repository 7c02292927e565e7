// Requests that wait for an idle GPU on the thread that submits them, with the lane of a worker
// that rests.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "server/engine/handover.h"
#include "tests/unit/server/engine/engine_fixture.h"
#include "tests/unit/server/engine/simulated_clock.h"

namespace fuseblock {
namespace {

using testing::EngineTest;
using testing::RandomRows;

constexpr BlockKind kPath = BlockKind::kFfnPath;

class CallerWaitsTest : public EngineTest {
 protected:
  CallerWaitsTest() {
    faults_ = std::make_shared<Faults>(clock_);
    options_.make_lane = WithFaults(SimulatedDevices(), faults_);
    options_.clock = &clock_;
    options_.devices = {kCuda0, kCpu};
    options_.caller_waits_max = absl::Hours(1);
  }
  ~CallerWaitsTest() override {
    faults_->Release(kCuda0);
    engine_.reset();  // before the clock
  }

  std::shared_ptr<ServedBlock> StartAndServe() {
    Start();
    return Serve("m.path", kPath);
  }
  // Sends one request; whether it was answered before Submit returned, on this thread.
  bool RunsHere(const std::shared_ptr<ServedBlock>& block, int64_t tokens) {
    const auto call = MakeCall(block, {RandomRows(block->spec.dtype, tokens, 1)});
    Request request = call->MakeRequest(call);
    std::thread::id answered_on;
    request.done = [&answered_on, done = std::move(request.done)](Outcome outcome) mutable {
      answered_on = std::this_thread::get_id();
      std::move(done)(std::move(outcome));
    };
    engine_->Submit(std::move(request));
    call->ExpectRight();
    return answered_on == std::this_thread::get_id();
  }
  // Until a lane's thread has gone to rest and a lull has passed.
  void SendUntilItRunsHere(const std::shared_ptr<ServedBlock>& block, int64_t tokens = 3) {
    do clock_.Advance(kLull);
    while (!RunsHere(block, tokens));
    clock_.Advance(kLull);
  }
  // A caller that waits for the GPU, on a thread of its own, until Release.
  std::thread CallAndHold(const CallPtr& call) {
    faults_->Hold(kCuda0);
    std::thread caller([this, call] { engine_->Submit(call->MakeRequest(call)); });
    faults_->AwaitHeld(kCuda0, 1);
    return caller;
  }
  CallPtr CallOf(const std::shared_ptr<ServedBlock>& block, int64_t tokens, uint32_t seed = 1) {
    return MakeCall(block, {RandomRows(block->spec.dtype, tokens, seed)});
  }

  testing::SimulatedClock clock_;
};

TEST_F(CallerWaitsTest, OnceItsCostIsKnown) {
  const auto path = StartAndServe();
  clock_.Advance(kLull);
  EXPECT_FALSE(RunsHere(path, 5)) << "nobody knows how long it takes";
  SendUntilItRunsHere(path);
  EXPECT_EQ(faults_->launches(kCpu), 0);
  ExpectNothingHeld();
}

// What came while the last one ran is read right after it, and shares a batch.
TEST_F(CallerWaitsTest, NotRightAfterTheLastAnswer) {
  const auto path = StartAndServe();
  SendUntilItRunsHere(path);
  EXPECT_TRUE(RunsHere(path, 3));
  EXPECT_FALSE(RunsHere(path, 3));
  SendUntilItRunsHere(path);
}

TEST_F(CallerWaitsTest, NotWhatTakesLonger) {
  options_.caller_waits_max = absl::Seconds(1);
  const auto path = StartAndServe();
  SendUntilItRunsHere(path);
  faults_->Inject(kCuda0, Fault::kSlowCopy, 1, absl::Seconds(5));
  const auto slow = CallOf(path, 3);
  std::thread caller([&] { engine_->Submit(slow->MakeRequest(slow)); });
  faults_->AwaitHeld(kCuda0, 1);
  clock_.Advance(absl::Seconds(5));
  caller.join();
  slow->ExpectRight();
  clock_.Advance(kLull);
  EXPECT_FALSE(RunsHere(path, 40)) << "in proportion 7 s or more";
}

TEST_F(CallerWaitsTest, NotWhatIsLongerThanABatch) {
  options_.batch_tokens_max = 8;
  const auto path = StartAndServe();
  SendUntilItRunsHere(path, 8);
  EXPECT_FALSE(RunsHere(path, 9));
}

TEST_F(CallerWaitsTest, OneAtATime) {
  options_.lanes_per_device = 2;
  const auto path = StartAndServe();
  SendUntilItRunsHere(path);
  const CallPtr waiting = CallOf(path, 3, 10);
  std::thread caller = CallAndHold(waiting);
  clock_.Advance(kLull);
  const CallPtr queued = Send(path, 4);  // returns: the other lane's own thread has it
  faults_->AwaitHeld(kCuda0, 2);
  faults_->Release(kCuda0);
  caller.join();
  waiting->ExpectRight();
  queued->ExpectRight();
}

TEST_F(CallerWaitsTest, WhatComesMeanwhileIsTheLanesOwnThreads) {
  const auto path = StartAndServe();
  SendUntilItRunsHere(path);
  const int before = faults_->launches(kCuda0);
  const CallPtr waiting = CallOf(path, 3, 10);
  std::thread caller = CallAndHold(waiting);
  const CallPtr queued[] = {Send(path, 4, 11), Send(path, 5, 12), Send(path, 6, 13)};
  for (const CallPtr& call : queued) EXPECT_FALSE(call->answered());
  faults_->Release(kCuda0);
  caller.join();
  waiting->ExpectRight();
  for (const CallPtr& call : queued) call->ExpectRight();
  EXPECT_EQ(faults_->launches(kCuda0) - before, 2) << "these three share a batch";
}

TEST_F(CallerWaitsTest, ABlockIsPreparedWhenTheLaneIsBack) {
  const auto path = StartAndServe();
  SendUntilItRunsHere(path);
  const CallPtr waiting = CallOf(path, 3, 10);
  std::thread caller = CallAndHold(waiting);
  std::thread loader([&] { Serve("m.other", kPath); });
  faults_->Release(kCuda0);
  loader.join();
  caller.join();
  waiting->ExpectRight();
  SendUntilItRunsHere(path);
}

TEST_F(CallerWaitsTest, AFailureMovesItsRequestToTheCpu) {
  const auto path = StartAndServe();
  SendUntilItRunsHere(path);
  faults_->Inject(kCuda0, Fault::kLaunchFailure);
  const CallPtr call = Send(path, 5);
  call->ExpectRight();
  EXPECT_EQ(call->Await().device, kCpu);
  call->ReleaseOutputs();
  while (engine_->Devices()[0].health != DeviceHealth::kHealthy) {
    clock_.Advance(absl::Minutes(1));
    std::this_thread::yield();
  }
  SendUntilItRunsHere(path);
  ExpectNothingHeld();
}

TEST_F(CallerWaitsTest, AHangKeepsTheThreadAndNothingElse) {
  const auto path = StartAndServe();
  SendUntilItRunsHere(path);
  faults_->Inject(kCuda0, Fault::kHang);
  const CallPtr hanging = CallOf(path, 5);
  std::atomic<bool> back{false};
  std::thread caller([&] {
    engine_->Submit(hanging->MakeRequest(hanging));
    back = true;
  });
  faults_->AwaitHeld(kCuda0, 1);
  clock_.Advance(options_.watchdog);
  hanging->ExpectRight();
  EXPECT_EQ(hanging->Await().device, kCpu);
  EXPECT_FALSE(back);
  EXPECT_TRUE(engine_->HasStuckLane());
  const CallPtr next = Send(path, 3);
  next->ExpectRight();
  EXPECT_EQ(next->Await().device, kCpu);
  faults_->Release(kCuda0);
  caller.join();
  while (engine_->Devices()[0].health != DeviceHealth::kHealthy) {
    clock_.Advance(absl::Minutes(1));
    std::this_thread::yield();
  }
  SendUntilItRunsHere(path);
  for (const CallPtr& call : {hanging, next}) call->ReleaseOutputs();
  ExpectNothingHeld();
}

TEST_F(CallerWaitsTest, TheEngineGoesWhileACallerHangs) {
  const auto path = StartAndServe();
  SendUntilItRunsHere(path);
  faults_->Inject(kCuda0, Fault::kHang);
  const CallPtr hanging = CallOf(path, 5);
  std::thread caller([&] { engine_->Submit(hanging->MakeRequest(hanging)); });
  faults_->AwaitHeld(kCuda0, 1);
  EXPECT_FALSE(engine_->Drain(absl::InfinitePast()));
  EXPECT_EQ(hanging->AwaitRefusal(), Reason::kDraining);
  engine_.reset();
  faults_->Release(kCuda0);
  caller.join();
}

TEST_F(CallerWaitsTest, ManyCallersShareTheLanesWhileTheyGrow) {
  options_.lanes_per_device = 2;
  const auto path = StartAndServe();
  SendUntilItRunsHere(path);
  std::atomic<bool> ended{false};
  std::vector<std::thread> callers;
  for (uint32_t t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      for (uint32_t i = 0; i < 200; ++i) {
        const CallPtr call = CallOf(path, (t + i) % 9, t * 1000 + i);
        clock_.Advance(kLull);
        engine_->Submit(call->MakeRequest(call));
        call->ExpectRight();
      }
    });
  }
  std::thread loader([&] {
    for (int i = 0; !ended; ++i) Serve("m.path" + std::to_string(i % 7), kPath);
  });
  for (std::thread& caller : callers) caller.join();
  ended = true;
  loader.join();
  ExpectNothingHeld();
}

}  // namespace
}  // namespace fuseblock
