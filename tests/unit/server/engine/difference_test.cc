// Distances between outputs: counted in representable values, for every float dtype.
#include "server/engine/difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/checkpoint_files.h"

namespace fuseblock {
namespace {

Difference Between(DType dtype, const std::vector<float>& a, const std::vector<float>& b) {
  const std::string x = testing::EncodeValues(a, dtype), y = testing::EncodeValues(b, dtype);
  return Compare(dtype, {reinterpret_cast<const std::byte*>(x.data()), x.size()},
                 {reinterpret_cast<const std::byte*>(y.data()), y.size()});
}

TEST(Difference, CountsStepsOfTheDType) {
  // One and its next value: 2^-23, 2^-10, 2^-7 above it.
  const std::pair<DType, float> steps[] = {
      {DType::kF32, 0x1p-23f}, {DType::kF16, 0x1p-10f}, {DType::kBF16, 0x1p-7f}};
  for (const auto& [dtype, step] : steps) {
    const Difference one = Between(dtype, {1, 5, 1}, {1 + step, 5, 1});
    EXPECT_EQ(one.elements, 1) << Name(dtype);
    EXPECT_EQ(one.ulp_max, 1) << Name(dtype);
    const Difference more = Between(dtype, {1, 1, -1}, {1 + step, 1 + 3 * step, -1 - 2 * step});
    EXPECT_EQ(more.elements, 3) << Name(dtype);
    EXPECT_EQ(more.ulp_max, 3) << Name(dtype);
    EXPECT_EQ(Between(dtype, {2, -3}, {2, -3}).elements, 0) << Name(dtype);
  }
}

TEST(Difference, CountsAcrossZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(Between(DType::kF32, {tiny}, {-tiny}).ulp_max, 2);
  const Difference zeros = Between(DType::kF32, {0.0f}, {-0.0f});
  EXPECT_EQ(zeros.elements, 1) << "the bits differ";
  EXPECT_EQ(zeros.ulp_max, 0);
}

TEST(Difference, NaNsAreAlikeAndFarFromNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Between(DType::kF32, {nan}, {-nan}).ulp_max, 0);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_TRUE(std::isinf(Between(dtype, {nan}, {1}).ulp_max)) << Name(dtype);
    EXPECT_TRUE(std::isinf(Between(dtype, {1}, {nan}).ulp_max)) << Name(dtype);
  }
}

TEST(Difference, NothingIsEqualToNothing) { EXPECT_EQ(Compare(DType::kBF16, {}, {}).elements, 0); }

}  // namespace
}  // namespace fuseblock
