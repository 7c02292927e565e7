// The engine when things break: lost devices, failed launches, slow readers, drains, and any
// mixture of them with clients that cancel and time out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "tests/unit/server/engine/engine_fixture.h"
#include "tests/unit/server/engine/simulated_clock.h"

namespace fuseblock {
namespace {

using testing::Call;
using testing::EngineTest;
using testing::RandomRows;

constexpr BlockKind kPath = BlockKind::kFfnPath;

class EngineFaultsTest : public EngineTest {
 protected:
  void StartWithGpu(FallbackPolicy fallback = FallbackPolicy::kCpu) {
    options_.devices = {kCuda0, kCpu};
    options_.fallback = fallback;
    options_.on_device_change = [this] { ++changes_; };
    Start();
  }
  double Fallbacks(const std::string& block, const std::string& cause) {
    return metrics_.Value("fuseblock_fallback_total{block=\"" + block + "\",cause=\"" + cause +
                          "\"}");
  }
  double Healthy(Device device) {
    return metrics_.Value("fuseblock_device_healthy{device=\"" + DeviceName(device) + "\"}");
  }

  std::atomic<int> changes_{0};
};

TEST_F(EngineFaultsTest, TheGpuAnswersWhileItIsThere) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  for (int i = 0; i < 5; ++i) {
    const auto call = Send(path, 3);
    call->ExpectRight();
    EXPECT_EQ(call->Await().device, kCuda0);
  }
  EXPECT_EQ(faults_->launches(kCpu), 0);
  EXPECT_EQ(Healthy(kCuda0), 1);
}

TEST_F(EngineFaultsTest, ALostDevicesBatchAndQueueMoveToTheCpu) {
  for (const auto& [fault, cause] : {std::pair(Fault::kDeviceLost, "device_lost"),
                                     std::pair(Fault::kLaunchFailure, "launch_failed")}) {
    SCOPED_TRACE(cause);
    const std::string name = std::string("m.") + cause;
    faults_ = std::make_shared<Faults>();
    options_.make_lane = WithFaults(SimulatedDevices(), faults_);
    changes_ = 0;
    testing::SimulatedClock clock;  // stands: no probe disturbs
    options_.clock = &clock;
    StartWithGpu();
    const auto path = Serve(name, kPath);
    const auto running = Occupy(path, kCuda0);
    std::vector<CallPtr> queued;
    for (int i = 0; i < 50; ++i) queued.push_back(Send(path, i % 20, static_cast<uint32_t>(i)));
    faults_->Inject(kCuda0, fault);
    faults_->Release(kCuda0);
    running->ExpectRight();
    EXPECT_EQ(running->Await().device, kCpu);
    for (const auto& call : queued) {
      call->ExpectRight();
      EXPECT_EQ(call->Await().device, kCpu);
    }
    EXPECT_EQ(faults_->launches(kCuda0), 1) << "nothing may reach a lost device";
    EXPECT_EQ(changes_, 1);
    EXPECT_EQ(Healthy(kCuda0), 0);
    EXPECT_NE(engine_->Devices()[0].health, DeviceHealth::kHealthy);
    EXPECT_THAT(engine_->Devices()[0].reason, ::testing::HasSubstr("injected on cuda:0"));
    EXPECT_TRUE(engine_->CanServe(*path));
    const double moved = Fallbacks(name, cause);
    EXPECT_EQ(fault == Fault::kDeviceLost ? moved : moved + Fallbacks(name, "device_lost"), 51);
    engine_.reset();
  }
}

TEST_F(EngineFaultsTest, WithoutFallbackTheyAreRefused) {
  StartWithGpu(FallbackPolicy::kRefuse);
  const auto path = Serve("m.path", kPath);
  const auto running = Occupy(path, kCuda0);
  const auto queued = Send(path, 5);
  EXPECT_TRUE(engine_->CanServe(*path));
  faults_->Inject(kCuda0, Fault::kDeviceLost);
  faults_->Release(kCuda0);
  for (const auto& call : {running, queued}) {
    EXPECT_EQ(call->AwaitRefusal(), Reason::kDeviceLost);
    EXPECT_GT(RetryAfterOf(call->Await().status), absl::ZeroDuration());
  }
  EXPECT_FALSE(engine_->CanServe(*path));
  EXPECT_EQ(Send(path, 1)->AwaitRefusal(), Reason::kDeviceLost);
  EXPECT_EQ(Shed("m.path", "device_lost"), 3);
  EXPECT_EQ(faults_->launches(kCpu), 0);
  ExpectNothingHeld();
}

TEST_F(EngineFaultsTest, ADeviceWithoutMemoryForABatchStaysInService) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCuda0, Fault::kOutOfMemory);
  const auto moved = Send(path, 3);
  moved->ExpectRight();
  EXPECT_EQ(moved->Await().device, kCpu);
  EXPECT_EQ(Fallbacks("m.path", "out_of_memory"), 1);
  const auto next = Send(path, 3);
  next->ExpectRight();
  EXPECT_EQ(next->Await().device, kCuda0);
  EXPECT_EQ(changes_, 0);
}

TEST_F(EngineFaultsTest, TheOtherGpuGoesOnWhenOneIsLost) {
  options_.devices = {kCuda0, kCuda1, kCpu};
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCuda0, Fault::kDeviceLost);
  while (faults_->launches(kCuda0) == 0) Send(path, 1)->ExpectRight();
  for (int i = 0; i < 5; ++i) {
    const auto call = Send(path, 2);
    call->ExpectRight();
    EXPECT_EQ(call->Await().device, kCuda1);
  }
  EXPECT_EQ(faults_->launches(kCpu), 1) << "only the batch that failed";
}

// Two requests that cannot share a batch, close together: both devices must take one, whichever
// worker was woken for which.
TEST_F(EngineFaultsTest, NoDeviceIdlesWhileARequestWaits) {
  options_.devices = {kCuda0, kCuda1};
  options_.fallback = FallbackPolicy::kRefuse;
  for (const auto& [spin_max, rounds] :
       {std::pair(absl::ZeroDuration(), 100), std::pair(absl::Milliseconds(100), 30)}) {
    options_.spin_max = spin_max;
    Start();
    const auto one = Serve("m.one", kPath);
    const auto other = Serve("m.other", kPath);
    for (int i = 0; i < rounds; ++i) {
      faults_->Hold(kCuda0);
      faults_->Hold(kCuda1);
      const auto first = MakeCall(one, {RandomRows(DType::kBF16, 1, 1)});
      const auto second = MakeCall(other, {RandomRows(DType::kBF16, 1, 1)});
      Request requests[] = {first->MakeRequest(first), second->MakeRequest(second)};
      for (Request& request : requests) engine_->Submit(std::move(request));
      faults_->AwaitHeld(kCuda0, 1);
      faults_->AwaitHeld(kCuda1, 1);
      faults_->Release(kCuda0);
      faults_->Release(kCuda1);
      first->ExpectRight();
      second->ExpectRight();
    }
  }
}

TEST_F(EngineFaultsTest, AFailureOnTheCpuFailsItsBatchOnly) {
  Start();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCpu, Fault::kLaunchFailure);
  EXPECT_EQ(Send(path, 3)->AwaitRefusal(), Reason::kInternal);
  faults_->Inject(kCpu, Fault::kOutOfMemory);
  EXPECT_EQ(Send(path, 3)->AwaitRefusal(), Reason::kMemory);
  Send(path, 3)->ExpectRight();
  EXPECT_TRUE(engine_->CanServe(*path));
}

TEST_F(EngineFaultsTest, AGpuWhoseLanesCannotBeMadeIsQuarantinedFromTheStart) {
  const LaneFactory simulated = SimulatedDevices();
  options_.make_lane = [&](Device device, int threads) -> absl::StatusOr<std::unique_ptr<Lane>> {
    if (device == kCuda0) return absl::InternalError("no stream");
    return simulated(device, threads);
  };
  StartWithGpu();
  Send(Serve("m.path", kPath), 3)->ExpectRight();
  EXPECT_EQ(engine_->Devices()[0].health, DeviceHealth::kLost);
  options_.fallback = FallbackPolicy::kRefuse;
  Metrics other;
  EXPECT_FALSE(Engine::Create(options_, other).ok());
}

// Readers that never let go of their answers must not stop the lane.
TEST_F(EngineFaultsTest, SlowReadersDoNotStallTheLane) {
  Start();
  const auto path = Serve("m.path", kPath);
  std::vector<CallPtr> held;
  for (int i = 0; i < 30; ++i) {
    held.push_back(Send(path, 1 + i % 4, static_cast<uint32_t>(i)));
    held.back()->ExpectRight();
  }
  // Of several in one batch, too.
  const auto busy = Occupy(path, kCpu);
  for (int i = 0; i < 3; ++i) held.push_back(Send(path, 5 + i, static_cast<uint32_t>(i)));
  faults_->Release(kCpu);
  held.push_back(busy);
  for (const auto& call : held) call->ExpectRight();  // still the same bytes
  EXPECT_EQ(metrics_.Value("fuseblock_inflight_requests"), 34);
  for (const auto& call : held) call->ReleaseOutputs();
  ExpectNothingHeld();
}

TEST_F(EngineFaultsTest, OutputsMayOutliveTheEngine) {
  Start();
  const auto path = Serve("m.path", kPath);
  std::vector<CallPtr> held;
  for (int i = 0; i < 5; ++i) held.push_back(Send(path, 2));
  for (const auto& call : held) call->Await();
  engine_.reset();
  for (const auto& call : held) {
    call->ExpectRight();
    call->ReleaseOutputs();
  }
}

TEST_F(EngineFaultsTest, DrainWaitsForWhatIsThereAndRefusesWhatIsNew) {
  Start();
  const auto path = Serve("m.path", kPath);
  const auto running = Occupy(path, kCpu);
  const auto queued = Send(path, 5);
  std::atomic<bool> drained{false};
  std::thread drain([&] {
    engine_->Drain(absl::Now() + absl::Minutes(10));
    drained = true;
  });
  Reason late = Reason::kCancelled;
  while (late == Reason::kCancelled) {  // until the drain has begun
    const auto call = Send(path, 1);
    engine_->Cancel(id_);
    late = call->AwaitRefusal();
  }
  EXPECT_EQ(late, Reason::kDraining);
  EXPECT_FALSE(drained);
  faults_->Release(kCpu);
  running->ExpectRight();
  queued->ExpectRight();
  running->ReleaseOutputs();
  EXPECT_FALSE(drained) << "an answer is still being read";
  queued->ReleaseOutputs();
  drain.join();
}

TEST_F(EngineFaultsTest, ADrainsDeadlineRefusesWhatIsQueued) {
  Start();
  const auto path = Serve("m.path", kPath);
  const auto running = Occupy(path, kCpu);
  const auto queued = Send(path, 5);
  engine_->Drain(absl::InfinitePast());
  EXPECT_EQ(queued->AwaitRefusal(), Reason::kDraining);
  EXPECT_FALSE(running->answered());
  faults_->Release(kCpu);
  running->ExpectRight();
}

TEST_F(EngineFaultsTest, DestroyingTheEngineAnswersEverything) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  const auto running = Occupy(path, kCuda0);
  const auto queued = Send(path, 5);
  faults_->Inject(kCuda0, Fault::kDeviceLost);
  std::thread destroyer([&] { engine_.reset(); });
  EXPECT_EQ(queued->AwaitRefusal(), Reason::kDraining);
  faults_->Release(kCuda0);  // and now the device fails: the CPU must still be there to take over
  running->ExpectRight();
  destroyer.join();
}

// A deadline that the queue ahead makes impossible is refused at once; how long a launch takes is
// told by the one before, which the test draws out.
TEST_F(EngineFaultsTest, AnInfeasibleDeadlineIsRefusedAtOnce) {
  Start();
  const auto path = Serve("m.path", kPath);
  const auto slow = Occupy(path, kCpu);
  const auto clock = MakeCall(path, {RandomRows(DType::kBF16, 1, 1)});
  clock->deadline = absl::Now() + absl::Milliseconds(200);
  Send(clock);  // nothing is known yet, so it is taken in
  EXPECT_EQ(clock->AwaitRefusal(), Reason::kExpired);
  faults_->Release(kCpu);
  slow->ExpectRight();

  const auto running = Occupy(path, kCpu);
  const auto call = MakeCall(path, {RandomRows(DType::kBF16, 1, 1)});
  call->deadline = absl::Now() + absl::Milliseconds(1);
  Send(call);
  ASSERT_TRUE(call->answered());
  EXPECT_EQ(call->AwaitRefusal(), Reason::kDeadlineInfeasible);
  EXPECT_GT(RetryAfterOf(call->Await().status), absl::ZeroDuration());
  EXPECT_EQ(Shed("m.path", "deadline_infeasible"), 1);
  faults_->Release(kCpu);
  running->ExpectRight();
}

// Clients that send, cancel, time out and read slowly while devices fail: nobody is left without an
// answer, no answer is wrong, and all counters agree with what the clients saw.
TEST_F(EngineFaultsTest, RandomTraffic) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    faults_ = std::make_shared<Faults>();
    options_.make_lane = WithFaults(SimulatedDevices(), faults_);
    options_.devices = {kCuda0, kCuda1, kCpu};
    options_.lanes_per_device = 2;
    options_.queue_tokens_max = 400;
    options_.request_tokens_max = 300;  // some are computed in chunks
    options_.tenant_quota.tokens_max = 350;
    options_.tenant_quotas["b"].requests_max = 6;
    options_.spin_max = absl::Microseconds(seed % 2 * 300);
    options_.fallback = seed % 3 == 0 ? FallbackPolicy::kRefuse : FallbackPolicy::kCpu;
    Start();
    const std::string prefix = "m" + std::to_string(seed);
    const std::shared_ptr<ServedBlock> blocks[] = {
        Serve(prefix + ".path", kPath), Serve(prefix + ".norm", BlockKind::kNormResidual)};
    constexpr int kClients = 4;
    constexpr int kRequests = 60;
    std::map<std::string, int> refused[kClients];
    std::thread clients[kClients];
    for (int c = 0; c < kClients; ++c) {
      clients[c] = std::thread([&, c] {
        std::mt19937 random(seed * 100 + static_cast<uint32_t>(c));
        std::vector<CallPtr> calls;
        for (int i = 0; i < kRequests; ++i) {
          const auto& block = blocks[random() % 2];
          const int64_t tokens = random() % 8 == 0 ? random() % 300 : random() % 40;
          std::vector<testing::RowTensor> inputs = {RandomRows(DType::kBF16, tokens, random())};
          if (random() % 2) inputs.push_back(RandomRows(DType::kBF16, inputs[0].dims[0], random()));
          const auto call = MakeCall(block, inputs);
          call->tenant = std::string(1, static_cast<char>('a' + c % 3));
          call->priority = static_cast<int>(random() % 4);
          if (random() % 4 == 0) call->deadline = absl::Now() + absl::Microseconds(random() % 3000);
          const auto id = engine_->Submit(call->MakeRequest(call));
          if (random() % 5 == 0) engine_->Cancel(id);
          calls.push_back(call);
          if (random() % 3 == 0) {
            calls[random() % calls.size()]->Await();
          }
          if (random() % 40 == 0) {
            constexpr Fault kFaults[] = {Fault::kLaunchFailure, Fault::kDeviceLost,
                                         Fault::kOutOfMemory};
            faults_->Inject(random() % 2 ? kCuda0 : kCuda1, kFaults[random() % 3]);
          }
          if (random() % 3 == 0) {
            Call& old = *calls[random() % calls.size()];
            if (old.Await().status.ok()) {
              old.ExpectRight();
            }
          }
        }
        for (const auto& call : calls) {
          const Outcome& outcome = call->Await();
          EXPECT_EQ(call->answers(), 1);
          if (outcome.status.ok()) {
            call->ExpectRight();
          } else {
            const ReasonTraits& traits = Traits(ReasonOf(outcome.status));
            EXPECT_NE(traits.reason, Reason::kInternal) << outcome.status;
            if (traits.shed) ++refused[c][std::string(traits.cause)];
          }
          call->ReleaseOutputs();
        }
      });
    }
    for (std::thread& client : clients) client.join();
    ExpectNothingHeld();
    std::map<std::string, int> total;
    for (const auto& mine : refused) {
      for (const auto& [cause, count] : mine) total[cause] += count;
    }
    for (const ReasonTraits& traits : AllReasons()) {
      const std::string cause(traits.cause);
      EXPECT_EQ(Shed(prefix + ".path", cause) + Shed(prefix + ".norm", cause), total[cause])
          << cause;
    }
    engine_.reset();
  }
}

}  // namespace
}  // namespace fuseblock
