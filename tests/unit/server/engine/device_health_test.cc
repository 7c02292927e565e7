#include "server/engine/device_health.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "server/engine/flight.h"

namespace fuseblock {
namespace {

using Cause = FallbackCause;
using Machine = DeviceHealthMachine;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

// Until it is healthy again, every probe failing but the last.
absl::Time RecoverAfter(Machine& machine, int failing) {
  absl::Time now;
  for (int i = 0;; ++i) {
    now = machine.next_probe();
    const int64_t round = machine.StartProbe(1);
    if (machine.Probed(round, i >= failing, "wrong", now)) return now;
  }
}

TEST(DeviceHealthTest, AFailureQuarantinesUntilEveryLaneWasRight) {
  Machine machine;
  EXPECT_TRUE(machine.takes_work());
  EXPECT_EQ(machine.next_probe(), absl::InfiniteFuture());
  EXPECT_TRUE(machine.Failed(Cause::kLaunchFailed, "first", kStart));
  EXPECT_FALSE(machine.Failed(Cause::kLaunchFailed, "on its way", kStart));
  EXPECT_EQ(machine.state(), DeviceHealth::kQuarantined);
  EXPECT_EQ(machine.reason(), "first");
  const absl::Time due = kStart + Machine::kFirstProbe;
  EXPECT_EQ(machine.next_probe(), due);
  const int64_t round = machine.StartProbe(2);
  EXPECT_EQ(machine.state(), DeviceHealth::kProbing);
  EXPECT_EQ(machine.next_probe(), absl::InfiniteFuture());
  EXPECT_FALSE(machine.Probed(round, true, "", due));
  EXPECT_FALSE(machine.takes_work()) << "one of its lanes has not answered";
  EXPECT_TRUE(machine.Probed(round, true, "", due));
  EXPECT_TRUE(machine.takes_work());
  EXPECT_EQ(machine.cause(), Cause::kLaunchFailed);
}

TEST(DeviceHealthTest, ProbesComeLessAndLessOften) {
  Machine machine;
  machine.Failed(Cause::kLaunchFailed, "", kStart);
  absl::Duration delay = Machine::kFirstProbe;
  absl::Time now = kStart;
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(machine.next_probe() - now, delay) << i;
    now = machine.next_probe();
    const int64_t round = machine.StartProbe(2);
    machine.Probed(round, false, "wrong", now);
    EXPECT_EQ(machine.reason(), "wrong");
    machine.Probed(round, true, "", now);  // too late: the round is over
    EXPECT_FALSE(machine.takes_work());
    delay = std::min(delay * 2, Machine::kLastProbe);
  }
  EXPECT_EQ(delay, Machine::kLastProbe);
}

TEST(DeviceHealthTest, OneThatFailsSoonAfterItRecoveredIsTrustedLess) {
  Machine machine;
  machine.Failed(Cause::kLaunchFailed, "", kStart);
  absl::Time now = RecoverAfter(machine, 2);
  machine.Failed(Cause::kLaunchFailed, "", now + absl::Seconds(1));
  EXPECT_EQ(machine.next_probe() - now, absl::Seconds(1) + 8 * Machine::kFirstProbe);
  now = RecoverAfter(machine, 0);
  machine.Failed(Cause::kLaunchFailed, "", now + Machine::kLastProbe);
  EXPECT_EQ(machine.next_probe() - now, Machine::kLastProbe + Machine::kFirstProbe);
}

TEST(DeviceHealthTest, MemoryMustBeRefusedInARow) {
  Machine machine;
  for (int i = 0; i < 5; ++i) {
    for (int n = 1; n < Machine::kOutOfMemoryInARow; ++n) {
      EXPECT_FALSE(machine.Failed(Cause::kOutOfMemory, "", kStart));
    }
    machine.Succeeded();
  }
  for (int n = 1; n < Machine::kOutOfMemoryInARow; ++n) {
    EXPECT_FALSE(machine.Failed(Cause::kOutOfMemory, "", kStart));
  }
  EXPECT_TRUE(machine.Failed(Cause::kOutOfMemory, "", kStart));
  EXPECT_EQ(machine.cause(), Cause::kOutOfMemory);
  RecoverAfter(machine, 0);
  EXPECT_FALSE(machine.Failed(Cause::kOutOfMemory, "", kStart)) << "counted from the start again";
}

TEST(DeviceHealthTest, AStickyErrorIsForEver) {
  for (const bool healthy : {true, false}) {
    Machine machine;
    if (!healthy) machine.Failed(Cause::kLaunchFailed, "", kStart);
    EXPECT_EQ(machine.Failed(Cause::kDeviceLost, "sticky", kStart), healthy);
    EXPECT_FALSE(machine.Failed(Cause::kLaunchFailed, "later", kStart));
    EXPECT_EQ(machine.state(), DeviceHealth::kLost);
    EXPECT_EQ(machine.reason(), "sticky");
    EXPECT_EQ(machine.next_probe(), absl::InfiniteFuture());
  }
}

TEST(DeviceHealthTest, NothingIsProbedWhileALaneIsStuck) {
  Machine machine;
  EXPECT_TRUE(machine.Failed(Cause::kHung, "one", kStart));
  EXPECT_FALSE(machine.Failed(Cause::kHung, "other", kStart));
  EXPECT_EQ(machine.stuck_lanes(), 2);
  EXPECT_EQ(machine.next_probe(), absl::InfiniteFuture());
  machine.LaneCameBack();
  EXPECT_EQ(machine.next_probe(), absl::InfiniteFuture());
  machine.LaneCameBack();
  EXPECT_EQ(machine.next_probe(), kStart + Machine::kFirstProbe);
}

TEST(DeviceHealthTest, AProbeThatHangsEndsItsRound) {
  Machine machine;
  machine.Failed(Cause::kLaunchFailed, "", kStart);
  const absl::Time due = machine.next_probe();
  const int64_t round = machine.StartProbe(2);
  EXPECT_FALSE(machine.Probed(round, true, "", due));
  EXPECT_FALSE(machine.Failed(Cause::kHung, "a probe hangs", due));
  EXPECT_FALSE(machine.Probed(round, true, "", due));
  EXPECT_EQ(machine.state(), DeviceHealth::kQuarantined);
  EXPECT_EQ(machine.reason(), "a probe hangs");
  machine.LaneCameBack();
  EXPECT_EQ(machine.next_probe(), due + 2 * Machine::kFirstProbe);
}

// Whatever comes in whatever order: it takes work only when it is healthy, is probed only when
// nothing is stuck and never sooner than it may, and what is lost stays lost.
TEST(DeviceHealthTest, RandomSchedules) {
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Machine machine;
    absl::Time now = kStart, ended = kStart;  // the newest end of being healthy, or of a round
    const int lanes = 1 + static_cast<int>(random() % 3);
    int stuck = 0;
    int64_t round = 0;
    bool lost = false;
    for (int step = 0; step < 60; ++step) {
      now += absl::Milliseconds(random() % 3000);
      const DeviceHealth before = machine.state();
      switch (random() % 6) {
        case 0:
          machine.Succeeded();
          break;
        case 1: {
          const Cause cause =
              random() % 20 == 0 ? Cause::kDeviceLost : static_cast<Cause>(1 + random() % 3);
          if (cause == Cause::kHung && stuck == lanes) break;
          const bool out = machine.Failed(cause, "failed", now);
          EXPECT_EQ(out, before == DeviceHealth::kHealthy && !machine.takes_work());
          stuck += cause == Cause::kHung;
          lost = lost || cause == Cause::kDeviceLost;
          break;
        }
        case 2:
          if (stuck == 0) break;
          machine.LaneCameBack();
          --stuck;
          break;
        case 3:
          if (machine.next_probe() > now) break;
          EXPECT_EQ(before, DeviceHealth::kQuarantined);
          EXPECT_EQ(stuck, 0);
          EXPECT_GE(now - ended, Machine::kFirstProbe);
          round = machine.StartProbe(lanes);
          break;
        default: {
          const bool right = random() % 4 != 0;
          const bool recovered = machine.Probed(round, right, "wrong", now);
          EXPECT_EQ(recovered, before == DeviceHealth::kProbing && machine.takes_work());
          EXPECT_TRUE(right || !recovered);
        }
      }
      if (machine.state() != before && machine.state() == DeviceHealth::kQuarantined) ended = now;
      EXPECT_EQ(machine.state() == DeviceHealth::kLost, lost);
      EXPECT_EQ(machine.stuck_lanes(), stuck);
      EXPECT_EQ(machine.takes_work(), machine.state() == DeviceHealth::kHealthy);
      if (machine.next_probe() < absl::InfiniteFuture()) {
        EXPECT_EQ(stuck, 0);
        EXPECT_LE(machine.next_probe() - ended, Machine::kLastProbe);
      }
    }
  }
}

TEST(FlightTest, OverdueMeansRunningForTooLong) {
  Flight flight;
  EXPECT_FALSE(flight.GiveUp(absl::InfiniteFuture())) << "it is on the ground";
  EXPECT_EQ(flight.overdue_at(), absl::InfiniteFuture());
  flight.Begin(kStart);
  EXPECT_EQ(flight.overdue_at(), kStart);
  EXPECT_FALSE(flight.GiveUp(kStart - absl::Nanoseconds(1)));
  EXPECT_TRUE(flight.GiveUp(kStart));
  EXPECT_FALSE(flight.GiveUp(kStart)) << "once only";
  EXPECT_EQ(flight.overdue_at(), absl::InfiniteFuture());
  EXPECT_TRUE(flight.given_up());
  EXPECT_EQ(flight.End(), Flight::Owner::kEngine);
  EXPECT_FALSE(flight.given_up());
  EXPECT_FALSE(flight.Orphan()) << "it is back";
  flight.Begin(kStart);
  EXPECT_EQ(flight.End(), Flight::Owner::kWorker);
}

TEST(FlightTest, AnOrphanStaysOne) {
  Flight flight;
  flight.Begin(kStart);
  EXPECT_FALSE(flight.Orphan()) << "nobody gave it up";
  EXPECT_TRUE(flight.GiveUp(kStart));
  EXPECT_TRUE(flight.Orphan());
  EXPECT_FALSE(flight.given_up());
  EXPECT_EQ(flight.End(), Flight::Owner::kNobody);
}

// Both ask for it at the same time: one of them gets it.
TEST(FlightTest, OneOwnerHoweverTheyRace) {
  Flight flight;
  int given_up = 0, came_late = 0;
  std::atomic<int> turn{0};
  constexpr int kTurns = 2000;
  std::thread engine([&] {
    for (int i = 1; i <= kTurns; ++i) {
      turn.wait(2 * i - 2);
      given_up += flight.GiveUp(kStart);
      turn.wait(2 * i - 1);
    }
  });
  for (int i = 1; i <= kTurns; ++i) {
    flight.Begin(kStart);
    turn = 2 * i - 1;
    turn.notify_all();
    came_late += flight.End() == Flight::Owner::kEngine;
    turn = 2 * i;
    turn.notify_all();
  }
  engine.join();
  // The engine may also find the lane on the ground already, or in a later flight.
  EXPECT_EQ(given_up, came_late);
}

}  // namespace
}  // namespace fuseblock
