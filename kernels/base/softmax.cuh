// What softmaxes have in common: the powers of a row's scores, and softmax as a policy of rows.cuh,
// for softmax and softmax_masked.
//
// e^(x - max) once for a row in registers. For FP32 results within 4 ulp however far x lies below
// the maximum; for 16-bit ones the hardware's power of two, whose 2^-22 and the argument's rounding
// are nothing beside 2^-12. These powers are kept times 2^24, which the division takes out, so that
// none is a subnormal number where the result may be one of BF16.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/approx.cuh"
#include "kernels/base/rows.cuh"

namespace fuseblock {

// s log2(e) in two parts, s > 0. Both are above 0, so that what they make of -inf is -inf.
struct PowerScale {
  float high = 0x1.715476p+0f, low = 1.92596299e-8f;  // of s = 1

  PowerScale() = default;
  explicit PowerScale(double s) {
    const double whole = s * 1.44269504088896341;
    high = static_cast<float>(whole);
    if (high > whole) high = std::nextafter(high, 0.0f);
    low = std::max(static_cast<float>(whole - high), std::numeric_limits<float>::denorm_min());
  }
};

// e^(s (x - max)) for the scores x of a row, all of them times a factor that the row's division
// takes out: so the whole number next to s log2(e) max may stand for it, and x need not be rounded
// by taking the maximum off first, unless that is too large for the rest to keep its digits.
template <typename Y>
class RowPowers {
 public:
  __device__ RowPowers(PowerScale scale, float max) : scale_(scale) {
    const float top = max * scale.high;
    near_ = fabsf(top) < 0x1p20f;  // not for NaN, nor for an infinity
    shift_ = near_ ? 0.0f : max;
    offset_ = near_ ? -rintf(top) : 0.0f;
    if constexpr (!kExact) offset_ += 24.0f;
  }

  __device__ float operator()(float x) const { return Of(x - shift_); }
  // The same, for rows whose powers say so of themselves.
  __device__ bool near() const { return near_; }
  __device__ float Near(float x) const { return Of(x); }

 private:
  static constexpr bool kExact = std::is_same_v<Y, float>;

  __device__ float Of(float d) const {
    if constexpr (kExact) {
      // 1.5 * 2^23 more than a float's exponent field: adding it rounds to a whole number n, which
      // lies in the lowest bits. Below the smallest normal the fraction keeps what n leaves out.
      constexpr float kRound = 12582912.0f + 127.0f;
      const float from = kRound + offset_;  // exact, as is its difference from `rounded`
      const float rounded = fmaxf(__fmaf_rn(d, scale_.high, from), kRound - 126.0f);
      float fraction = __fmaf_rn(d, scale_.high, from - rounded);
      fraction = __fmaf_rn(d, scale_.low, fraction);
      return Exp2(fraction) * __int_as_float(__float_as_int(rounded) << 23);
    } else {
      return Exp2Approx(__fmaf_rn(d, scale_.high, offset_));
    }
  }

  PowerScale scale_;
  float shift_, offset_;
  bool near_;
};

// kEmptyIsZero: a row that is all -inf gives zeros; otherwise, as the formula has it, NaN.
template <typename Y, bool kEmptyIsZero>
struct SoftmaxPolicy {
  static constexpr float kFill = -std::numeric_limits<float>::infinity();
  static constexpr int kReductions = 2;
  template <int N>
  struct Columns {};
  struct Stats {
    RowPowers<Y> power;
    float inverse;
  };

  Y* y;
  int64_t y_stride;

  template <bool kVector, int N, typename Left>
  __device__ void LoadColumns(Columns<N>&, int64_t, Left) const {}

  template <typename Row>
  __device__ Stats Reduce(Row& row) const {
    float max = row.template Reduce<1>(Max(),
                                       [](auto& partial, const auto& h, auto) {
#pragma unroll
                                         for (const float value : h)
                                           partial[0] = Max()(partial[0], value);
                                       })
                    .values[0];
    // -inf less itself is NaN: what an empty row's result is, unless it is to be zero.
    const bool empty = kEmptyIsZero && max == kFill;
    const RowPowers<Y> power(PowerScale(), empty ? 0.0f : max);
    const auto sum = row.template Reduce<1>(Sum(), [power](auto& partial, auto& h, auto) {
#pragma unroll
      for (float& value : h) {
        value = power(value);
        partial[0] += value;
      }
    });
    return {power, empty ? 0.0f : 1.0f / sum.values[0]};
  }

  template <bool kVector, bool kKept, int N, typename Left>
  __device__ void Write(const Stats& stats, const Columns<N>&, const float (&h)[N], int64_t row,
                        int64_t col, Left left) const {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float power = kKept ? h[i] : stats.power(h[i]);
      values[i] = power * stats.inverse;
    }
    StoreRounded<kVector>(values, y + row * y_stride + col, left);
  }
};

}  // namespace fuseblock
