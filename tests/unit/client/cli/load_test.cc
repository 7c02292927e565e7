// Percentiles of samples.
#include "client/cli/load.h"

#include <numeric>

#include "gtest/gtest.h"

namespace fuseblock::cli {
namespace {

TEST(Describe, GivesTheSampleThatTheShareDoesNotExceed) {
  std::vector<double> samples(1000);
  std::iota(samples.rbegin(), samples.rend(), 1);  // 1000 .. 1: sorted by Describe
  const Distribution d = Describe(samples);
  EXPECT_EQ(d.count, 1000);
  EXPECT_EQ(d.mean, 500.5);
  EXPECT_EQ(d.p50, 500);
  EXPECT_EQ(d.p90, 900);
  EXPECT_EQ(d.p99, 990);
  EXPECT_EQ(d.p999, 999);
  EXPECT_EQ(d.max, 1000);
}

TEST(Describe, TakesOneSampleAndNone) {
  const Distribution one = Describe({7});
  EXPECT_EQ(one.p50, 7);
  EXPECT_EQ(one.p999, 7);
  EXPECT_EQ(Describe({}).count, 0);
  EXPECT_EQ(Describe({}).max, 0);
}

TEST(LoadReport, RatesAreZeroWithoutTime) {
  LoadReport report;
  EXPECT_EQ(report.RequestsPerSecond(), 0);
  report.seconds = 2;
  report.requests = 10;
  report.tokens = 160;
  EXPECT_EQ(report.RequestsPerSecond(), 5);
  EXPECT_EQ(report.TokensPerSecond(), 80);
}

}  // namespace
}  // namespace fuseblock::cli
