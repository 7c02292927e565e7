#include "tests/support/numerics_compare.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/base/reference.h"

namespace fuseblock::testing {
namespace {

int SmallestNormalExponent(DType dtype) { return dtype == DType::kF16 ? -14 : -126; }

double LargestFinite(DType dtype) {
  return dtype == DType::kF16 ? 65504 : dtype == DType::kBF16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
}

// The bound at one cell, in absolute terms.
double Allowed(const Bound& bound, DType expected_dtype, DType dtype, double expected,
               double factor, double magnitude) {
  // The reference's rounding where it is FP32's, one more rounding of the arithmetic.
  double allowed = 0.5 * Spacing(expected_dtype, expected);
  if (dtype != DType::kF32) allowed += 0.5 * Spacing(dtype, expected);
  allowed += bound.fp32_roundings * kUnitRoundoffFp32 * magnitude;
  // Below the smallest normal each of them is half the smallest subnormal instead.
  allowed += 0.5 * bound.fp32_roundings * Spacing(DType::kF32, 0);
  if (bound.factor) {
    const double intermediate = factor == 0 ? 0 : expected / factor;
    allowed += std::abs(factor) *
               (bound.rounds_intermediate ? Spacing(dtype, intermediate) : Spacing(DType::kF32, 0));
  }
  return allowed;
}

}  // namespace

double Spacing(DType dtype, double value) {
  int exponent = SmallestNormalExponent(dtype);
  if (value != 0 && std::isfinite(value)) {
    exponent = std::max(exponent, std::ilogb(value));
  }
  return std::ldexp(Traits(dtype).epsilon, exponent);
}

Comparison Compare(const Tensor& expected, const Tensor& got, const Bound& bound) {
  Comparison result;
  double worst_excess = -1;
  const auto fail = [&](int64_t row, int64_t column, double excess, double ulp, double allowed) {
    result.within = false;
    if (excess <= worst_excess) return;
    worst_excess = excess;
    result.message = absl::StrFormat(
        "row %d, column %d: expected %.9g, got %.9g (0x%x): %.4g ULP, allowed %.4g", row, column,
        expected.At(row, column), got.At(row, column), got.Bits(row, column), ulp, allowed);
  };
  for (int64_t row = 0; row < got.rows(); ++row) {
    for (int64_t column = 0; column < got.columns(); ++column) {
      const double want = expected.At(row, column), have = got.At(row, column);
      const double rounded = RoundedTo(got.dtype(), want);
      if (std::isnan(want) && std::isnan(have)) continue;
      const bool same = rounded == have && std::signbit(rounded) == std::signbit(have);
      if (same) {
        if (std::isfinite(have)) {
          result.worst_ulp =
              std::max(result.worst_ulp, std::abs(have - want) / Spacing(got.dtype(), want));
        }
        continue;
      }
      ++result.differing;
      const double spacing = Spacing(got.dtype(), want);
      if (std::isnan(want) || std::isnan(have) || std::isinf(want)) {
        fail(row, column, INFINITY, INFINITY, 0);
        continue;
      }
      // Beside infinity the bound is measured to the value that overflow stands for.
      const double distance = std::isinf(have)
                                  ? LargestFinite(got.dtype()) + spacing / 2 - std::abs(want)
                                  : std::abs(have - want);
      const double factor = bound.factor ? bound.factor(row, column) : 0;
      const double magnitude = bound.magnitude ? bound.magnitude(row, column) : std::abs(want);
      const double allowed =
          bound.bit_exact ? 0
                          : Allowed(bound, expected.dtype(), got.dtype(), want, factor, magnitude);
      if (distance > allowed || (bound.bit_exact && !same)) {
        fail(row, column, distance / spacing, distance / spacing, allowed / spacing);
      } else {
        result.worst_ulp = std::max(result.worst_ulp, distance / spacing);
      }
    }
  }
  return result;
}

}  // namespace fuseblock::testing
