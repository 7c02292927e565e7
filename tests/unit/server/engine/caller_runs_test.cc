// Short batches on the thread that submits them, while the CPU's lane is idle.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/server/engine/engine_fixture.h"

namespace fuseblock {
namespace {

using testing::EngineTest;
using testing::Ids;
using testing::kVocabulary;
using testing::RandomRows;

constexpr BlockKind kNorm = BlockKind::kNormResidual;

class CallerRunsTest : public EngineTest {
 protected:
  CallerRunsTest() {
    options_.caller_runs_max = absl::Hours(1);
    options_.caller_lanes = 1;
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
  // Until the lane's thread has gone to rest.
  void SendUntilItRunsHere(const std::shared_ptr<ServedBlock>& block, int64_t tokens) {
    while (!RunsHere(block, tokens)) std::this_thread::yield();
  }
};

TEST_F(CallerRunsTest, OnceItsCostIsKnown) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  EXPECT_FALSE(RunsHere(norm, 5)) << "nobody knows how long it takes";
  SendUntilItRunsHere(norm, 5);
  const auto path = Serve("m.path", BlockKind::kFfnPath);
  EXPECT_FALSE(RunsHere(path, 5)) << "another block was never seen either";
  ExpectNothingHeld();
}

TEST_F(CallerRunsTest, NotWhatTakesLonger) {
  options_.caller_runs_max = absl::Nanoseconds(1);
  Start();
  const auto norm = Serve("m.norm", kNorm);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(RunsHere(norm, 5));
}

TEST_F(CallerRunsTest, NotWhileTheDevicesOwnLaneIsBusy) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  SendUntilItRunsHere(norm, 5);
  const auto path = Serve("m.path", BlockKind::kFfnPath);
  faults_->Hold(kCpu);
  const auto first = Send(path, 3);  // never seen before, so it is not for a caller
  faults_->AwaitHeld(kCpu, 1);
  EXPECT_FALSE(Send(norm, 5)->answered()) << "it would take cores from the lane";
  faults_->Release(kCpu);
  first->ExpectRight();
}

TEST_F(CallerRunsTest, AsManyAtATimeAsThereAreLanes) {
  options_.caller_lanes = 2;
  Start();
  const auto norm = Serve("m.norm", kNorm);
  SendUntilItRunsHere(norm, 5);
  faults_->Hold(kCpu);
  CallPtr calls[2];
  std::thread callers[2];
  for (int i = 0; i < 2; ++i) {
    calls[i] = MakeCall(norm, {RandomRows(DType::kBF16, 3, 10 + i)});
    callers[i] = std::thread([&, i] { engine_->Submit(calls[i]->MakeRequest(calls[i])); });
    faults_->AwaitHeld(kCpu, i + 1);
  }
  const CallPtr queued = Send(norm, 4);  // returns: the device's own lane has it
  faults_->AwaitHeld(kCpu, 3);
  faults_->Release(kCpu);
  for (std::thread& caller : callers) caller.join();
  for (const CallPtr& call : {calls[0], calls[1], queued}) {
    call->ExpectRight();
    call->ReleaseOutputs();
  }
  ExpectNothingHeld();
}

// The answer's callback submits again, while this caller's lane is still its own.
TEST_F(CallerRunsTest, ACallbackThatSubmitsTakesAnotherLane) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  SendUntilItRunsHere(norm, 5);
  const auto next = MakeCall(norm, {RandomRows(DType::kBF16, 7, 3)});
  const auto first = MakeCall(norm, {RandomRows(DType::kBF16, 5, 4)});
  Request request = first->MakeRequest(first);
  request.done = [&, done = std::move(request.done)](Outcome outcome) mutable {
    engine_->Submit(next->MakeRequest(next));
    std::move(done)(std::move(outcome));
  };
  engine_->Submit(std::move(request));
  for (const CallPtr& call : {first, next}) {
    call->ExpectRight();
    call->ReleaseOutputs();
  }
  ExpectNothingHeld();
}

TEST_F(CallerRunsTest, AFailureIsItsRequestsOwn) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  SendUntilItRunsHere(norm, 5);
  faults_->Inject(kCpu, Fault::kLaunchFailure);
  const auto call = Send(norm, 5);
  EXPECT_EQ(call->AwaitRefusal(), Reason::kInternal);
  SendUntilItRunsHere(norm, 5);
  ExpectNothingHeld();
}

TEST_F(CallerRunsTest, ABadTokenIdIsTheClientsFaultEvenWhereTheLaneFails) {
  Start();
  const auto embed = Serve("m.embed", BlockKind::kEmbedding);
  const auto runs_here = [&] {
    const auto call = MakeCall(embed, {Ids<int32_t>({1})});
    engine_->Submit(call->MakeRequest(call));
    const bool here = call->answered();
    call->ExpectRight();
    return here;
  };
  while (!runs_here()) std::this_thread::yield();
  const auto bad = MakeCall(embed, {Ids<int32_t>({kVocabulary})});
  faults_->Inject(kCpu, Fault::kLaunchFailure);
  engine_->Submit(bad->MakeRequest(bad));
  EXPECT_EQ(bad->AwaitRefusal(), Reason::kBadTensor);
  EXPECT_EQ(bad->Await().status.message(), "ids[0]: expected 0 <= id < 50, got 50");
}

TEST_F(CallerRunsTest, ManyCallersShareTheLaneWhileItGrows) {
  Start();
  const auto norm = Serve("m.norm", kNorm);
  SendUntilItRunsHere(norm, 5);
  std::atomic<bool> ended{false};
  std::vector<std::thread> callers;
  for (uint32_t t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      for (uint32_t i = 0; i < 200; ++i) {
        const auto call = MakeCall(norm, {RandomRows(DType::kBF16, (t + i) % 9, t * 1000 + i)});
        engine_->Submit(call->MakeRequest(call));
        call->ExpectRight();
      }
    });
  }
  std::thread loader([&] {
    for (int i = 0; !ended; ++i) Serve("m.path" + std::to_string(i % 7), BlockKind::kFfnPath);
  });
  for (std::thread& caller : callers) caller.join();
  ended = true;
  loader.join();
  ExpectNothingHeld();
}

}  // namespace
}  // namespace fuseblock
