// The warp's and the block's reductions: every width, every thread's result, NaN and infinity, and
// two calls in a row on one scratch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/gpu/reduce_kernels.h"

namespace fuseblock::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Integers: sums of them are exact in any order.
std::vector<float> Integers(int count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i * 37 % 101);
  return values;
}

float SumOf(const std::vector<float>& values) {
  float sum = 0;
  for (const float value : values) sum += value;
  return sum;
}

TEST(WarpReduce, EveryNumberOfLanes) {
  for (int lanes = 1; lanes <= 32; ++lanes) {
    const std::vector<float> values = Integers(lanes);
    for (const float got : RunWarpReduce(ReduceOp::kSum, values)) {
      ASSERT_EQ(got, SumOf(values)) << lanes << " lanes";
    }
    for (const float got : RunWarpReduce(ReduceOp::kMax, values)) {
      ASSERT_EQ(got, *std::max_element(values.begin(), values.end())) << lanes << " lanes";
    }
  }
}

TEST(WarpReduce, MaximumPropagatesNan) {
  for (const int lanes : {1, 5, 32}) {
    for (int at = 0; at < lanes; ++at) {
      std::vector<float> values = Integers(lanes);
      values[static_cast<size_t>(at)] = kNan;
      for (const float got : RunWarpReduce(ReduceOp::kMax, values)) {
        ASSERT_TRUE(std::isnan(got)) << lanes << " lanes, NaN in " << at;
      }
    }
    const std::vector<float> lowest(static_cast<size_t>(lanes), -kInfinity);
    for (const float got : RunWarpReduce(ReduceOp::kMax, lowest)) ASSERT_EQ(got, -kInfinity);
  }
}

TEST(BlockReduce, AnyBlockSizeTwiceInARow) {
  for (const int threads :
       {1, 7, 31, 32, 33, 63, 64, 100, 128, 255, 256, 500, 512, 1000, 1023, 1024}) {
    const std::vector<float> values = Integers(threads);
    float sum = 0;
    float squares = 0;  // at most 1,024 * 100^2 < 2^24: exact
    for (const float value : values) {
      sum += value;
      squares += value * value;
    }
    const float max = *std::max_element(values.begin(), values.end());
    const std::vector<float> sums = RunBlockReduceTwice(ReduceOp::kSum, values);
    const std::vector<float> maxima = RunBlockReduceTwice(ReduceOp::kMax, values);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(sums[2 * i], sum) << threads << " threads, thread " << i;
      ASSERT_EQ(sums[2 * i + 1], squares) << threads << " threads, thread " << i;
      ASSERT_EQ(maxima[2 * i], max) << threads << " threads, thread " << i;
      ASSERT_EQ(maxima[2 * i + 1], max * max) << threads << " threads, thread " << i;
    }
  }
}

TEST(BlockReduce, MaximumPropagatesNan) {
  for (const size_t at : {0, 1, 31, 32, 250, 299}) {
    std::vector<float> values(300, -kInfinity);
    for (const float got : RunBlockReduceTwice(ReduceOp::kMax, values)) {
      ASSERT_TRUE(got == -kInfinity || got == kInfinity);  // the square's maximum is +inf
    }
    values[at] = kNan;
    for (const float got : RunBlockReduceTwice(ReduceOp::kMax, values)) {
      ASSERT_TRUE(std::isnan(got)) << "NaN in " << at;
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
