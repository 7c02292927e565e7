// Elements of every dtype: known bit patterns, rounding, and all 65,536 half values there and back.
#include "client/cli/dtype.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"

namespace fuseblock::cli {
namespace {

uint16_t Bits(v1::DataType type, double value) {
  std::byte data[2];
  SetElement(type, data, 0, value);
  uint16_t bits;
  std::memcpy(&bits, data, 2);
  return bits;
}

double Value(v1::DataType type, uint16_t bits) {
  return ElementAt(type, reinterpret_cast<const std::byte*>(&bits), 0);
}

TEST(DType, HalvesSurviveTheWayToDoubleAndBack) {
  for (v1::DataType type : {v1::DATA_TYPE_FP16, v1::DATA_TYPE_BF16}) {
    for (int bits = 0; bits < 65536; ++bits) {
      const double value = Value(type, static_cast<uint16_t>(bits));
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(Value(type, Bits(type, value)))) << bits;
      } else {
        ASSERT_EQ(Bits(type, value), bits) << Traits(type).name << " " << value;
      }
    }
  }
}

TEST(DType, RoundsToNearestEven) {
  EXPECT_EQ(Bits(v1::DATA_TYPE_BF16, 1.00390625), 0x3F80);  // a tie, down to even
  EXPECT_EQ(Bits(v1::DATA_TYPE_BF16, 1.01171875), 0x3F82);  // a tie, up to even
  EXPECT_EQ(Bits(v1::DATA_TYPE_BF16, 3.4e38), 0x7F80);      // to infinity
  EXPECT_EQ(Bits(v1::DATA_TYPE_FP16, 2049), 0x6800);        // 2048: a tie, down to even
  EXPECT_EQ(Bits(v1::DATA_TYPE_FP16, 2051), 0x6802);        // 2052: a tie, up to even
  EXPECT_EQ(Bits(v1::DATA_TYPE_FP16, 65519.9), 0x7BFF);     // the largest number
  EXPECT_EQ(Bits(v1::DATA_TYPE_FP16, 65520), 0x7C00);       // a tie, to infinity
  EXPECT_EQ(Bits(v1::DATA_TYPE_FP16, std::ldexp(1, -24)), 0x0001);
  EXPECT_EQ(Bits(v1::DATA_TYPE_FP16, std::ldexp(1, -25)), 0x0000);
  EXPECT_EQ(Bits(v1::DATA_TYPE_FP16, -std::ldexp(1023.5, -24)), 0x8400);  // into the normal numbers
  EXPECT_EQ(Bits(v1::DATA_TYPE_FP16, -0.0), 0x8000);
}

TEST(DType, WideTypesKeepTheirValues) {
  std::byte data[32];
  SetElement(v1::DATA_TYPE_FP32, data, 3, -0.1f);
  EXPECT_EQ(ElementAt(v1::DATA_TYPE_FP32, data, 3), -0.1f);
  SetElement(v1::DATA_TYPE_INT32, data, 2, -7);
  EXPECT_EQ(ElementAt(v1::DATA_TYPE_INT32, data, 2), -7);
  SetElement(v1::DATA_TYPE_INT64, data, 1, 49151);
  EXPECT_EQ(ElementAt(v1::DATA_TYPE_INT64, data, 1), 49151);
}

TEST(DType, ShapesReadAsInErrors) {
  EXPECT_EQ(ShapeText({4, 576}, v1::DATA_TYPE_BF16), "[4, 576] BF16");
  EXPECT_EQ(ShapeText({}, v1::DATA_TYPE_INT32), "[] INT32");
}

}  // namespace
}  // namespace fuseblock::cli
