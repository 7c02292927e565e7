#include "server/engine/lateness.h"

#include <gtest/gtest.h>

#include <random>

namespace fuseblock {
namespace {

TEST(Lateness, FollowsTheQuantileThatNearlyAllStayWithin) {
  for (const double spread : {0.2, 1.0}) {
    Lateness lateness;
    std::mt19937 random(3);
    std::uniform_real_distribution<double> ratio(1 - spread, 1 + spread);
    int late = 0;
    constexpr int kRequests = 20000;
    for (int i = 0; i < kRequests; ++i) {
      const absl::Duration predicted = absl::Milliseconds(1 + static_cast<int>(random() % 100));
      const absl::Duration actual = predicted * ratio(random);
      late += actual > predicted * lateness.Factor() ? 1 : 0;
      lateness.Observe(predicted, actual);
    }
    EXPECT_NEAR(lateness.Factor(), 1 + spread, 0.2) << spread;
    EXPECT_LT(late, kRequests * 0.015) << spread;
  }
}

TEST(Lateness, StaysInItsBounds) {
  Lateness lateness;
  EXPECT_GT(lateness.Factor(), 1);
  for (int i = 0; i < 10000; ++i) lateness.Observe(absl::Seconds(1), absl::ZeroDuration());
  EXPECT_EQ(lateness.Factor(), 1);
  for (int i = 0; i < 10000; ++i) lateness.Observe(absl::Milliseconds(1), absl::Seconds(1));
  EXPECT_EQ(lateness.Factor(), 4);
}

TEST(Lateness, ARequestThatNobodyCouldPredictSaysNothing) {
  Lateness lateness;
  const double before = lateness.Factor();
  lateness.Observe(absl::ZeroDuration(), absl::Seconds(1));
  EXPECT_EQ(lateness.Factor(), before);
}

}  // namespace
}  // namespace fuseblock
