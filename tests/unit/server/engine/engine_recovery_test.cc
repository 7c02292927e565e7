// Devices that fail and come back: lanes that hang, probes, and an engine that must end all the
// same. Time is simulated: a hang is over, or given up, when the test says so.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/server/engine/engine_fixture.h"
#include "tests/unit/server/engine/simulated_clock.h"

namespace fuseblock {
namespace {

using testing::EngineTest;
using testing::SimulatedClock;

constexpr BlockKind kPath = BlockKind::kFfnPath;
constexpr absl::Duration kWatchdog = absl::Seconds(10);
constexpr absl::Duration kFirstProbe = absl::Seconds(1);

class EngineRecoveryTest : public EngineTest {
 protected:
  ~EngineRecoveryTest() override {
    for (const Device device : {kCpu, kCuda0, kCuda1}) faults_->Release(device);
    engine_.reset();
    faults_->AwaitNoneHeld(kCuda0);  // they look at the clock
  }

  void StartWithGpu(FallbackPolicy fallback = FallbackPolicy::kCpu) {
    faults_ = std::make_shared<Faults>(clock_);
    options_.make_lane = WithFaults(SimulatedDevices(), faults_);
    options_.devices = {kCuda0, kCpu};
    options_.fallback = fallback;
    options_.watchdog = kWatchdog;
    options_.clock = &clock_;
    options_.on_device_change = [this] {
      ++changes_;
      changes_.notify_all();
    };
    Start();
  }
  // A request whose launch hangs on the GPU.
  CallPtr SendIntoHang(const std::shared_ptr<ServedBlock>& block) {
    faults_->Inject(kCuda0, Fault::kHang);
    CallPtr call = Send(block, 3, 7);
    faults_->AwaitHeld(kCuda0, 1);
    return call;
  }
  void AwaitChanges(int changes) {
    for (int seen = changes_; seen < changes; seen = changes_) changes_.wait(seen);
    EXPECT_EQ(changes_, changes);
  }
  // The device's next batch takes it out of service.
  void Quarantine(const std::shared_ptr<ServedBlock>& block) {
    faults_->Inject(kCuda0, Fault::kLaunchFailure);
    Send(block, 1)->Await();
  }
  void AwaitLaunches(int launches) {
    while (faults_->launches(kCuda0) < launches) std::this_thread::yield();
  }
  DeviceStatus Gpu() const { return engine_->Devices()[0]; }
  double Count(const std::string& series, const std::string& cause) {
    return metrics_.Value("fuseblock_device_" + series + "_total{cause=\"" + cause +
                          "\",device=\"cuda:0\"}");
  }
  double Fallbacks(const std::string& cause) {
    return metrics_.Value("fuseblock_fallback_total{block=\"m.path\",cause=\"" + cause + "\"}");
  }
  void ExpectAnsweredBy(const CallPtr& call, Device device) {
    call->ExpectRight();
    EXPECT_EQ(call->Await().device, device);
    EXPECT_EQ(call->answers(), 1);
  }

  SimulatedClock clock_;
  std::atomic<int> changes_{0};
};

TEST_F(EngineRecoveryTest, AHungBatchAndTheQueueBehindItMoveToTheCpu) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  const auto hung = SendIntoHang(path);
  const auto queued = Send(path, 5, 8);
  clock_.Advance(kWatchdog - absl::Nanoseconds(1));
  EXPECT_FALSE(hung->answered());
  clock_.Advance(absl::Nanoseconds(1));
  ExpectAnsweredBy(hung, kCpu);
  ExpectAnsweredBy(queued, kCpu);
  EXPECT_EQ(Gpu().health, DeviceHealth::kQuarantined);
  EXPECT_EQ(Gpu().stuck_lanes, 1);
  EXPECT_EQ(Gpu().until_probe, absl::InfiniteDuration()) << "a stuck lane can't be probed";
  EXPECT_TRUE(engine_->HasStuckLane());
  EXPECT_EQ(Count("quarantines", "hung"), 1);
  EXPECT_EQ(Fallbacks("hung"), 1);
  EXPECT_EQ(Fallbacks("device_lost"), 1);
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(faults_->launches(kCuda0), 1) << "nothing may reach a device that hangs";

  // The lane comes back late, and writes its results: nobody's bytes change, nobody is answered
  // twice. The probe is long due.
  faults_->Release(kCuda0);
  AwaitChanges(2);
  ExpectAnsweredBy(hung, kCpu);
  ExpectAnsweredBy(queued, kCpu);
  EXPECT_EQ(Gpu().health, DeviceHealth::kHealthy);
  EXPECT_EQ(Gpu().stuck_lanes, 0);
  EXPECT_FALSE(engine_->HasStuckLane());
  EXPECT_EQ(Count("recoveries", "hung"), 1);
  ExpectAnsweredBy(Send(path, 4, 9), kCuda0);
  for (const auto& call : {hung, queued}) call->ReleaseOutputs();
}

TEST_F(EngineRecoveryTest, WithoutFallbackAHungBatchIsRefused) {
  StartWithGpu(FallbackPolicy::kRefuse);
  const auto path = Serve("m.path", kPath);
  const auto hung = SendIntoHang(path);
  const auto queued = Send(path, 5, 8);
  clock_.Advance(kWatchdog);
  EXPECT_EQ(hung->AwaitRefusal(), Reason::kDeviceLost);
  EXPECT_EQ(queued->AwaitRefusal(), Reason::kDeviceLost);
  EXPECT_FALSE(engine_->CanServe(*path));
  EXPECT_EQ(Shed("m.path", "device_lost"), 2);
  faults_->Release(kCuda0);
  clock_.Advance(kFirstProbe);
  AwaitChanges(2);
  EXPECT_TRUE(engine_->CanServe(*path));
  ExpectAnsweredBy(Send(path, 2), kCuda0);
  EXPECT_EQ(hung->answers(), 1);
  ExpectNothingHeld();
}

TEST_F(EngineRecoveryTest, ACancelledRequestInAHungBatchIsTheClientsOwn) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  const auto hung = SendIntoHang(path);
  engine_->Cancel(id_);
  clock_.Advance(kWatchdog);
  EXPECT_EQ(hung->AwaitRefusal(), Reason::kCancelled);
}

// What is slow is not hung: not below the bound, and not on the CPU, which nobody could replace.
TEST_F(EngineRecoveryTest, SlowIsNotHung) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCuda0, Fault::kSlowCopy, 1, kWatchdog / 2);
  const auto slow = Send(path, 3);
  faults_->AwaitHeld(kCuda0, 1);
  clock_.Advance(kWatchdog / 2);
  ExpectAnsweredBy(slow, kCuda0);
  EXPECT_GE(slow->Await().timings.h2d, absl::ToDoubleMicroseconds(kWatchdog / 2));
  // A batch that takes so long again and again is given ten times of that.
  faults_->Inject(kCuda0, Fault::kSlowCopy, 1, 4 * kWatchdog);
  const auto slower = Send(path, 3);
  faults_->AwaitHeld(kCuda0, 1);
  clock_.Advance(4 * kWatchdog);
  ExpectAnsweredBy(slower, kCuda0);

  Quarantine(path);
  faults_->Hold(kCpu);
  const auto busy = Send(path, 3);
  faults_->AwaitHeld(kCpu, 1);
  clock_.Advance(absl::Hours(1));
  faults_->Release(kCpu);
  ExpectAnsweredBy(busy, kCpu);
  EXPECT_EQ(Count("quarantines", "hung"), 0);
}

TEST_F(EngineRecoveryTest, AProbeBringsTheDeviceBackWhenItsResultIsRight) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  Quarantine(path);
  EXPECT_EQ(Gpu().until_probe, kFirstProbe);
  EXPECT_EQ(metrics_.Value("fuseblock_device_healthy{device=\"cuda:0\"}"), 0);
  ExpectAnsweredBy(Send(path, 2), kCpu);
  // Wrong, without memory, failing: each postpones the next probe to twice the time.
  absl::Duration delay = kFirstProbe;
  int launches = faults_->launches(kCuda0);
  for (const Fault fault : {Fault::kWrongResult, Fault::kOutOfMemory, Fault::kLaunchFailure}) {
    faults_->Inject(kCuda0, fault);
    clock_.Advance(delay - absl::Nanoseconds(1));
    EXPECT_EQ(faults_->launches(kCuda0), launches);
    clock_.Advance(absl::Nanoseconds(1));
    AwaitLaunches(++launches);
    delay *= 2;
    while (Gpu().until_probe != delay) std::this_thread::yield();
    ExpectAnsweredBy(Send(path, 2), kCpu);
  }
  EXPECT_EQ(Count("quarantines", "launch_failed"), 1);
  EXPECT_EQ(Count("recoveries", "launch_failed"), 0);
  clock_.Advance(delay);
  AwaitChanges(2);
  EXPECT_EQ(Count("recoveries", "launch_failed"), 1);
  EXPECT_EQ(metrics_.Value("fuseblock_device_healthy{device=\"cuda:0\"}"), 1);
  ExpectAnsweredBy(Send(path, 2), kCuda0);
}

TEST_F(EngineRecoveryTest, WhatWaitedForTheDeviceGoesBackToIt) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  Quarantine(path);
  faults_->Hold(kCpu);
  const auto running = Send(path, 1, 5);
  faults_->AwaitHeld(kCpu, 1);
  const auto queued = Send(path, 3, 6);
  clock_.Advance(kFirstProbe);
  ExpectAnsweredBy(queued, kCuda0);
  faults_->Release(kCpu);
  ExpectAnsweredBy(running, kCpu);
}

TEST_F(EngineRecoveryTest, AStickyErrorIsNeverProbed) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  faults_->Inject(kCuda0, Fault::kDeviceLost);
  ExpectAnsweredBy(Send(path, 2), kCpu);
  EXPECT_EQ(Gpu().health, DeviceHealth::kLost);
  for (int i = 0; i < 20; ++i) clock_.Advance(absl::Minutes(1));
  ExpectAnsweredBy(Send(path, 2), kCpu);
  EXPECT_EQ(faults_->launches(kCuda0), 1);
  EXPECT_EQ(Count("quarantines", "device_lost"), 1);
}

TEST_F(EngineRecoveryTest, AStickyErrorThatAProbeMeetsEndsTheProbing) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  Quarantine(path);
  faults_->Inject(kCuda0, Fault::kDeviceLost);
  clock_.Advance(kFirstProbe);
  while (Gpu().health != DeviceHealth::kLost) std::this_thread::yield();
  EXPECT_EQ(Gpu().until_probe, absl::InfiniteDuration());
}

TEST_F(EngineRecoveryTest, MemoryRefusedInARowQuarantines) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  const auto send = [&](bool fails) {
    if (fails) faults_->Inject(kCuda0, Fault::kOutOfMemory);
    ExpectAnsweredBy(Send(path, 2), fails ? kCpu : kCuda0);
  };
  for (const bool fails : {true, true, false, true, true}) send(fails);
  EXPECT_EQ(Gpu().health, DeviceHealth::kHealthy);
  send(true);
  EXPECT_EQ(Gpu().health, DeviceHealth::kQuarantined);
  EXPECT_EQ(Count("quarantines", "out_of_memory"), 1);
  EXPECT_EQ(Fallbacks("out_of_memory"), 5);
}

TEST_F(EngineRecoveryTest, AProbeThatHangsIsGivenUpToo) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  Quarantine(path);
  faults_->Inject(kCuda0, Fault::kHang);
  clock_.Advance(kFirstProbe);
  faults_->AwaitHeld(kCuda0, 1);
  clock_.Advance(kWatchdog);
  while (!engine_->HasStuckLane()) std::this_thread::yield();
  ExpectAnsweredBy(Send(path, 2), kCpu);
  faults_->Release(kCuda0);
  while (engine_->HasStuckLane()) std::this_thread::yield();
  clock_.Advance(2 * kFirstProbe);
  AwaitChanges(2);
  ExpectAnsweredBy(Send(path, 2), kCuda0);
}

// A block that comes while the device is away must find room on its lanes when it is back; and the
// load must not wait for a lane that is stuck.
TEST_F(EngineRecoveryTest, BlocksThatComeMeanwhileAreServedAfterwards) {
  StartWithGpu();
  const auto small = Serve("m.norm", BlockKind::kNormResidual);
  const auto hung = SendIntoHang(small);
  std::shared_ptr<ServedBlock> during, after;
  std::thread loader([&] { during = Serve("m.during", kPath); });
  clock_.Advance(kWatchdog);
  hung->ExpectRight();
  loader.join();
  after = Serve("m.after", BlockKind::kMlp);
  ExpectAnsweredBy(Send(after, 60), kCpu);
  faults_->RefuseMemory(kCuda0);
  faults_->Release(kCuda0);
  while (engine_->HasStuckLane()) std::this_thread::yield();
  clock_.Advance(kFirstProbe);
  while (Gpu().until_probe != 2 * kFirstProbe) std::this_thread::yield();
  EXPECT_EQ(Gpu().health, DeviceHealth::kQuarantined) << "no memory for what came meanwhile";
  faults_->RefuseMemory(kCuda0, false);
  clock_.Advance(2 * kFirstProbe);
  AwaitChanges(2);
  for (const auto& block : {during, after}) ExpectAnsweredBy(Send(block, 60), kCuda0);
}

TEST_F(EngineRecoveryTest, ADrainsDeadlineDoesNotWaitForALane) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  const auto hung = SendIntoHang(path);
  const auto queued = Send(path, 5);
  engine_->Drain(absl::InfinitePast());
  EXPECT_EQ(hung->AwaitRefusal(), Reason::kDraining);
  EXPECT_EQ(queued->AwaitRefusal(), Reason::kDraining);
  EXPECT_TRUE(engine_->HasStuckLane());
  EXPECT_EQ(Shed("m.path", "draining"), 2);
}

// The engine ends although a lane never came back. The lane then does, to find nobody.
TEST_F(EngineRecoveryTest, TheEngineEndsWithoutALaneThatIsStuck) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  const auto hung = SendIntoHang(path);
  clock_.Advance(kWatchdog);
  ExpectAnsweredBy(hung, kCpu);
  engine_.reset();
  EXPECT_EQ(path.use_count(), 3) << "this, the call, and the lane that still reads its weights";
  faults_->Release(kCuda0);
  faults_->AwaitNoneHeld(kCuda0);
  hung->ExpectRight();
}

// The same when the hang is noticed only while the engine ends.
TEST_F(EngineRecoveryTest, TheEngineGivesALaneUpWhileItEnds) {
  StartWithGpu();
  const auto path = Serve("m.path", kPath);
  const auto hung = SendIntoHang(path);
  std::thread destroyer([&] { engine_.reset(); });
  clock_.Advance(kWatchdog);
  ExpectAnsweredBy(hung, kCpu);
  destroyer.join();
}

}  // namespace
}  // namespace fuseblock
