#include "server/engine/cost_model.h"

#include <gtest/gtest.h>

#include <random>

namespace fuseblock {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

double Us(absl::Duration duration) { return absl::ToDoubleMicroseconds(duration); }

TEST(CostModel, KnowsNothingAtFirst) {
  const CostModel model;
  EXPECT_EQ(model.Predict(1000), absl::ZeroDuration());
  EXPECT_EQ(model.Certain(1000, kNow), absl::ZeroDuration());
}

// Costs jump where a kernel changes its tiling: a straight line through all sizes would miss both.
TEST(CostModel, EachBucketHasItsOwnCost) {
  CostModel model;
  std::mt19937 random(1);
  const auto cost = [](int64_t tokens) {
    return tokens <= 64 ? 200.0 : 150.0 + 3.0 * static_cast<double>(tokens);
  };
  for (int i = 0; i < 500; ++i) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 512);
    const double noise = 0.95 + 0.1 * static_cast<double>(random() % 1000) / 1000;
    model.Observe(tokens, absl::Microseconds(cost(tokens) * noise), kNow);
  }
  for (const int64_t tokens : {20, 48, 100, 192, 256, 384}) {
    EXPECT_NEAR(Us(model.Predict(tokens)), cost(tokens), 0.1 * cost(tokens)) << tokens;
  }
}

TEST(CostModel, OneSizeOnlyIsScaledDownNotUp) {
  CostModel model;
  for (int i = 0; i < 10; ++i) model.Observe(100, absl::Milliseconds(10), kNow);
  EXPECT_NEAR(Us(model.Predict(100)), 10000, 1);
  EXPECT_NEAR(Us(model.Predict(1)), 100, 1);
  EXPECT_NEAR(Us(model.Predict(1000)), 10000, 1);
}

TEST(CostModel, ForWhoMustNotWaitWhatWasNotSeenIsDear) {
  CostModel model;
  EXPECT_EQ(model.PredictAtMost(1), absl::InfiniteDuration());
  for (int i = 0; i < 10; ++i) model.Observe(100, absl::Milliseconds(10), kNow);
  EXPECT_NEAR(Us(model.PredictAtMost(1)), 10000, 1);
  EXPECT_NEAR(Us(model.PredictAtMost(1000)), 100000, 1);
  model.Observe(200, absl::Milliseconds(12), kNow);
  EXPECT_NEAR(Us(model.PredictAtMost(150)), 11000, 1);
  EXPECT_NEAR(Us(model.PredictAtMost(400)), 24000, 1);
}

TEST(CostModel, ForWhoMustNotWaitInterruptionsDoNotCount) {
  CostModel model;
  for (int i = 0; i < 100; ++i) {
    model.Observe(100, absl::Microseconds(i % 10 == 0 ? 50 : 1000), kNow);
  }
  EXPECT_GT(Us(model.Predict(100)), 500);
  EXPECT_NEAR(Us(model.PredictAtMost(100)), 60, 20);
  for (int i = 0; i < 300; ++i) model.Observe(100, absl::Microseconds(1000), kNow);
  EXPECT_NEAR(Us(model.PredictAtMost(100)), 1000, 1) << "it has become slower";
}

TEST(CostModel, GrowsBeyondTheLargestAsBeforeIt) {
  CostModel model;
  model.Measure(100, absl::Microseconds(300));
  model.Measure(200, absl::Microseconds(500));
  EXPECT_NEAR(Us(model.Predict(150)), 400, 1);
  EXPECT_NEAR(Us(model.Predict(1000)), 2100, 1);
  model.Measure(400, absl::Microseconds(400));  // noise: never downwards
  EXPECT_NEAR(Us(model.Predict(1000)), 400, 1);
}

TEST(CostModel, FollowsAChange) {
  CostModel model;
  model.Measure(1, absl::Milliseconds(1));
  for (int i = 0; i < 50; ++i) model.Observe(1, absl::Milliseconds(9), kNow);
  EXPECT_NEAR(Us(model.Predict(1)), 9000, 100);
}

TEST(CostModel, IsNeverNegative) {
  CostModel model;
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    model.Observe(static_cast<int64_t>(random() % 50), absl::Microseconds(random() % 1000), kNow);
    for (const int64_t tokens : {0, 1, 7, 30, 1000}) {
      EXPECT_GE(model.Predict(tokens), absl::ZeroDuration());
    }
  }
}

// If nothing is let through, nothing corrects the estimate.
TEST(CostModel, AnOldEstimateIsNotBelieved) {
  CostModel model;
  model.Observe(1, absl::Seconds(30), kNow);
  EXPECT_EQ(model.Certain(1, kNow + absl::Milliseconds(999)), absl::Seconds(30));
  EXPECT_EQ(model.Certain(1, kNow + absl::Seconds(1)), absl::ZeroDuration());
  model.Measure(1, absl::Milliseconds(4));
  model.Observe(1, absl::Seconds(30), kNow);
  EXPECT_GT(model.Certain(1, kNow), absl::Seconds(10));
  EXPECT_EQ(model.Certain(1, kNow + absl::Seconds(1)), absl::Milliseconds(2));
}

}  // namespace
}  // namespace fuseblock
