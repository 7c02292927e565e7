// Comparison of an implementation's output with the reference's, in units of the output's last
// place (ULP), against a bound that the test derives.
#pragma once

#include <functional>
#include <string>

#include "tests/support/numerics_tensor.h"

namespace fuseblock::testing {

inline constexpr double kUnitRoundoffFp32 = 0x1p-24;

// The distance between neighbours at `value` in the dtype: constant below the smallest normal.
double Spacing(DType dtype, double value);

// What an output may differ by from the exact value:
//   half a spacing for the rounding to the dtype, and
//   `fp32_roundings` * 2^-24 * |value| for the FP32 arithmetic before it, and
//   when an intermediate is rounded and then multiplied by `factor`, what one spacing of the
//   intermediate (of `intermediate` dtype; FP32 counts only below its smallest normal) makes of
//   that product.
struct Bound {
  double fp32_roundings = 0;
  bool bit_exact = false;            // the same bits as the reference, any NaN for any NaN
  bool rounds_intermediate = false;  // to the output's dtype, before the factor
  std::function<double(int64_t row, int64_t column)> factor;  // empty: none
  // What the FP32 roundings are relative to where terms may cancel: the sum of their magnitudes.
  // Empty: the value itself.
  std::function<double(int64_t row, int64_t column)> magnitude{};
};

struct Comparison {
  bool within = true;
  double worst_ulp = 0;   // the largest error where both are finite, in the output's ULP
  int64_t differing = 0;  // cells whose bits are not the expected value's, rounded
  std::string message;    // the worst cell beyond the bound: both values, the error and the bound
};

// `expected` is the exact value: the reference's output in the dtype of `got`, or in FP32, where
// its own rounding counts too.
Comparison Compare(const Tensor& expected, const Tensor& got, const Bound& bound);

}  // namespace fuseblock::testing
