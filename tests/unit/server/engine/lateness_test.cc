#include "server/engine/lateness.h"

#include <gtest/gtest.h>

#include <random>

namespace fuseblock {
namespace {

constexpr absl::Duration kOwn = absl::Milliseconds(1);

TEST(Lateness, FollowsTheQuantileThatNearlyAllStayWithin) {
  for (const double spread : {0.2, 1.0}) {
    Lateness lateness;
    std::mt19937 random(3);
    std::uniform_real_distribution<double> ratio(1 - spread, 1 + spread);
    int late = 0;
    constexpr int kRequests = 100000;
    for (int i = 0; i < kRequests; ++i) {
      const Prediction predicted{absl::Milliseconds(2 + static_cast<int>(random() % 100)), kOwn};
      const absl::Duration actual = predicted.wait * ratio(random) + kOwn;
      late += actual > lateness.Bound(predicted) ? 1 : 0;
      lateness.Observe(predicted, actual);
    }
    EXPECT_NEAR(lateness.factor(), 1 + spread, 0.15) << spread;
    EXPECT_LT(late, kRequests * 0.0015) << spread;
  }
}

TEST(Lateness, StaysInItsBounds) {
  const Prediction predicted{absl::Seconds(1), kOwn};
  Lateness lateness;
  EXPECT_GT(lateness.factor(), 1);
  for (int i = 0; i < 20000; ++i) lateness.Observe(predicted, absl::ZeroDuration());
  EXPECT_EQ(lateness.factor(), 1);
  for (int i = 0; i < 20000; ++i) lateness.Observe(predicted, absl::Seconds(10));
  EXPECT_EQ(lateness.factor(), 4);
}

TEST(Lateness, OnlyAWaitIsStretched) {
  const Lateness lateness;
  EXPECT_EQ(lateness.Bound({absl::ZeroDuration(), kOwn}), kOwn);
  EXPECT_GT(lateness.Bound({kOwn, kOwn}), kOwn * 2);
}

TEST(Lateness, AnyWaitInTimeLowersIt) {
  Lateness lateness;
  const double before = lateness.factor();
  lateness.Observe({kOwn / 8, kOwn}, kOwn);
  EXPECT_LT(lateness.factor(), before);
}

TEST(Lateness, NothingIsLearntFromALateOneThatHardlyWaits) {
  for (const Prediction& predicted : {Prediction{}, Prediction{kOwn / 2, kOwn}}) {
    Lateness lateness;
    const double before = lateness.factor();
    lateness.Observe(predicted, absl::Seconds(1));
    EXPECT_EQ(lateness.factor(), before);
  }
}

}  // namespace
}  // namespace fuseblock
