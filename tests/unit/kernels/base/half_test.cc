#include "kernels/base/half.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace fuseblock {
namespace {

// The value of a bit pattern with that many exponent and mantissa bits, from the definition.
double Defined(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  }
  return (bits >> 15) != 0 ? -value : value;
}

template <typename T>
struct Format;
template <>
struct Format<Half> {
  static constexpr int kExponentBits = 5, kMantissaBits = 10;
  static constexpr uint16_t kInfinity = 0x7C00;
};
template <>
struct Format<BFloat16> {
  static constexpr int kExponentBits = 8, kMantissaBits = 7;
  static constexpr uint16_t kInfinity = 0x7F80;
};

template <typename T>
class SixteenBits : public ::testing::Test {};
using SixteenBitTypes = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(SixteenBits, SixteenBitTypes);

TYPED_TEST(SixteenBits, EveryPatternReadsAsDefinedAndComesBack) {
  using F = Format<TypeParam>;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TypeParam value{static_cast<uint16_t>(bits)};
    const double defined = Defined(bits, F::kExponentBits, F::kMantissaBits);
    const float read = ToFloat(value);
    if (std::isnan(defined)) {
      ASSERT_TRUE(std::isnan(read)) << bits;
      const uint16_t back = FromFloat<TypeParam>(read).bits;
      ASSERT_EQ(back, bits | (1u << (F::kMantissaBits - 1))) << "quiet, payload and sign kept";
      continue;
    }
    ASSERT_EQ(read, defined) << bits;
    ASSERT_EQ(std::signbit(read), bits >> 15 != 0) << bits;
    ASSERT_EQ(FromFloat<TypeParam>(read).bits, bits);
    ASSERT_EQ(FromDouble<TypeParam>(read).bits, bits);
  }
}

// Between each pair of neighbours: a quarter rounds down, the half to even, three quarters up; and
// what is a hair off the half, by less than FP32 can tell, goes to its own side from FP64.
TYPED_TEST(SixteenBits, RoundsToNearestEvenEverywhere) {
  for (uint16_t bits = 0; bits < Format<TypeParam>::kInfinity; ++bits) {
    const uint16_t next = static_cast<uint16_t>(bits + 1);
    const double low = ToFloat(TypeParam{bits});
    const double step = next == Format<TypeParam>::kInfinity
                            ? low - ToFloat(TypeParam{static_cast<uint16_t>(bits - 1)})
                            : ToFloat(TypeParam{next}) - low;
    const uint16_t even = bits % 2 == 0 ? bits : next;
    for (const double sign : {1.0, -1.0}) {
      const uint16_t sign_bit = sign < 0 ? 0x8000 : 0;
      const auto from_float = [&](double value) {
        return FromFloat<TypeParam>(static_cast<float>(sign * value)).bits ^ sign_bit;
      };
      const auto from_double = [&](double value) {
        return FromDouble<TypeParam>(sign * value).bits ^ sign_bit;
      };
      const double half = low + step / 2;
      ASSERT_EQ(from_float(low + step / 4), bits);
      ASSERT_EQ(from_float(half), even);
      ASSERT_EQ(from_float(low + 3 * step / 4), next);
      ASSERT_EQ(from_double(half), even);
      ASSERT_EQ(from_double(half - step * 0x1p-30), bits);
      ASSERT_EQ(from_double(half + step * 0x1p-30), next);
    }
  }
}

TYPED_TEST(SixteenBits, OverflowAndInfinity) {
  const uint16_t infinity = Format<TypeParam>::kInfinity;
  const uint16_t minus = static_cast<uint16_t>(infinity | 0x8000);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(FromFloat<TypeParam>(static_cast<float>(kInfinity)).bits, infinity);
  EXPECT_EQ(FromDouble<TypeParam>(kInfinity).bits, infinity);
  EXPECT_EQ(FromDouble<TypeParam>(-kInfinity).bits, minus);
  EXPECT_EQ(FromDouble<TypeParam>(1e300).bits, infinity);
  EXPECT_EQ(FromDouble<TypeParam>(-1e300).bits, minus);
  EXPECT_EQ(FromDouble<TypeParam>(1e-300).bits, 0);
  EXPECT_EQ(FromDouble<TypeParam>(-1e-300).bits, 0x8000);
  EXPECT_TRUE(std::isnan(ToFloat(FromDouble<TypeParam>(std::nan("")))));
}

TEST(BFloat16, TiesToEven) {
  EXPECT_EQ(ToFloat(ToBFloat16(1.00390625f)), 1.0f);
  EXPECT_EQ(ToFloat(ToBFloat16(1.01171875f)), 1.015625f);
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x7F800001u)).bits, 0x7FC0)
      << "a NaN with low bits only";
}

TEST(Half, SubnormalsAreKept) {
  EXPECT_EQ(ToHalf(0x1p-24f).bits, 1);
  EXPECT_EQ(ToHalf(0x1p-25f).bits, 0) << "half the smallest: a tie, to even";
  EXPECT_EQ(ToHalf(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
  EXPECT_EQ(ToHalf(65519.996f).bits, 0x7BFF);
  EXPECT_EQ(ToHalf(65520.0f).bits, 0x7C00);
}

TEST(VisitFloat, GivesTheHostType) {
  const auto size = [](auto value) { return static_cast<int>(sizeof(value)); };
  for (const DType dtype : kFloatDTypes) EXPECT_EQ(VisitFloat(dtype, size), SizeOf(dtype));
}

}  // namespace
}  // namespace fuseblock
