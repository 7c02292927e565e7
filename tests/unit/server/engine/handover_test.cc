#include "server/engine/handover.h"

#include <gtest/gtest.h>

#include <thread>

namespace fuseblock {
namespace {

constexpr absl::Duration kMax = absl::Microseconds(200);

TEST(SpinPolicyTest, NotBeforeThereIsTraffic) { EXPECT_FALSE(SpinPolicy(kMax).Worthwhile()); }

TEST(SpinPolicyTest, WhileBatchesComeInQuickSuccession) {
  SpinPolicy policy(kMax);
  int waits = 0;
  for (; !policy.Worthwhile() && waits < 100; ++waits) policy.Waited(kMax / 2);
  EXPECT_GT(waits, 1) << "one quick batch is no traffic";
  EXPECT_LT(waits, 10);
  for (int i = 0; i < 100; ++i) policy.Waited(kMax / 2);
  policy.Waited(absl::Hours(1));
  policy.Waited(absl::Hours(1));
  EXPECT_FALSE(policy.Worthwhile()) << "the traffic has ended";
}

TEST(SpinPolicyTest, NeverForWhatComesInLargerSteps) {
  SpinPolicy policy(kMax);
  for (int i = 0; i < 100; ++i) {
    policy.Waited(kMax * 2);
    EXPECT_FALSE(policy.Worthwhile());
  }
}

TEST(SpinPolicyTest, SeldomForShortWaitsBeforeALongOne) {
  SpinPolicy policy(kMax);
  int missed = 0;
  for (int request = 0; request < 100; ++request) {
    for (const absl::Duration waited : {kMax / 8, kMax / 8, kMax * 2}) {
      if (policy.Worthwhile() && waited > kMax) {
        policy.Missed();
        ++missed;
      }
      policy.Waited(waited);
    }
  }
  EXPECT_LT(missed, 25);
}

TEST(SpinPolicyTest, TriesAgainWhenThereIsTrafficAgain) {
  SpinPolicy policy(kMax);
  policy.Missed();
  int waits = 0;
  for (; !policy.Worthwhile() && waits < 100; ++waits) policy.Waited(kMax / 8);
  EXPECT_GT(waits, 5);
  EXPECT_LT(waits, 20);
}

TEST(SpinPolicyTest, NeverWhereThereAreNoCoresToSpare) {
  SpinPolicy policy(SpinMaxFor(2, 1));
  for (int i = 0; i < 100; ++i) {
    policy.Waited(absl::ZeroDuration());
    EXPECT_FALSE(policy.Worthwhile());
  }
  EXPECT_GT(SpinMaxFor(16, 1), absl::ZeroDuration());
  EXPECT_EQ(SpinMaxFor(16, 0), absl::ZeroDuration()) << "on the CPU alone every core computes";
}

TEST(SpinWhileTest, EndsWithTheTimeAndWithTheChange) {
  std::atomic<uint32_t> value{7};
  EXPECT_FALSE(SpinWhile(value, 7, absl::ZeroDuration()));
  EXPECT_TRUE(SpinWhile(value, 6, absl::ZeroDuration())) << "changed before it was looked at";
  std::thread other([&] { ++value; });
  EXPECT_TRUE(SpinWhile(value, 7, absl::Hours(1)));
  other.join();
}

}  // namespace
}  // namespace fuseblock
