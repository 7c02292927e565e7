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
  EXPECT_FALSE(model.Trusted(kNow));
}

TEST(CostModel, FindsTheTwoPartsUnderNoise) {
  CostModel model;
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 512);
    const double noise = 0.95 + 0.1 * static_cast<double>(random() % 1000) / 1000;
    model.Observe(tokens, absl::Microseconds((200.0 + 3.0 * static_cast<double>(tokens)) * noise),
                  kNow);
  }
  EXPECT_NEAR(Us(model.PerToken()), 3, 1);
  EXPECT_NEAR(Us(model.Predict(256)), 968, 97);
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
}

TEST(CostModel, FollowsAChange) {
  CostModel model;
  for (int i = 0; i < 50; ++i) model.Observe(1 + i % 2, absl::Milliseconds(1), kNow);
  for (int i = 0; i < 50; ++i) model.Observe(1 + i % 2, absl::Milliseconds(9), kNow);
  EXPECT_NEAR(Us(model.Predict(1)), 9000, 100);
}

TEST(CostModel, NoPartIsEverNegative) {
  CostModel model;
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    model.Observe(static_cast<int64_t>(random() % 5), absl::Microseconds(random() % 1000), kNow);
    EXPECT_GE(model.Fixed(), absl::ZeroDuration());
    EXPECT_GE(model.PerToken(), absl::ZeroDuration());
  }
}

// If nothing is let through, nothing corrects the estimate.
TEST(CostModel, AnOldEstimateIsNotTrusted) {
  CostModel model;
  model.Observe(1, absl::Seconds(30), kNow);
  EXPECT_TRUE(model.Trusted(kNow + absl::Milliseconds(999)));
  EXPECT_FALSE(model.Trusted(kNow + absl::Seconds(1)));
}

}  // namespace
}  // namespace fuseblock
