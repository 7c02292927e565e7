// Softmax as a policy of rows.cuh, for softmax and softmax_masked.
//
// e^(x - max) once for a row in registers. For FP32 results expf (1 ulp); for 16-bit ones the
// hardware's power of two, whose 2^-22 and the argument's rounding are nothing beside 2^-12. These
// powers are kept times 2^24, which the division takes out, so that none is a subnormal number
// where the result may be one of BF16.
#pragma once

#include <limits>

#include "kernels/base/approx.cuh"
#include "kernels/base/rows.cuh"

namespace fuseblock {

// e^x for x <= 0, as accurate as a tensor of Y deserves; for 16-bit tensors times 2^24.
template <typename Y>
__device__ float ExpFor(float x) {
  if constexpr (std::is_same_v<Y, float>) {
    return expf(x);
  } else {
    return Exp2Approx(__fmaf_rn(x, 0x1.715476p+0f, 24.0f));
  }
}

// kEmptyIsZero: a row that is all -inf gives zeros; otherwise, as the formula has it, NaN.
template <typename Y, bool kEmptyIsZero>
struct SoftmaxPolicy {
  static constexpr float kFill = -std::numeric_limits<float>::infinity();
  static constexpr int kReductions = 2;
  template <int N>
  struct Columns {};
  struct Stats {
    float max, inverse;
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
    if (empty) max = 0.0f;
    const auto powers = row.template Reduce<1>(Sum(), [max](auto& sum, auto& h, auto) {
#pragma unroll
      for (float& value : h) {
        value = ExpFor<Y>(value - max);
        sum[0] += value;
      }
    });
    return {max, empty ? 0.0f : 1.0f / powers.values[0]};
  }

  template <bool kVector, bool kKept, int N, typename Left>
  __device__ void Write(const Stats& stats, const Columns<N>&, const float (&h)[N], int64_t row,
                        int64_t col, Left left) const {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float power = kKept ? h[i] : ExpFor<Y>(h[i] - stats.max);
      values[i] = power * stats.inverse;
    }
    Unit<Y, N> out;
    out.SetRounded(values);
    out.template Store<kVector>(y + row * y_stride + col, left);
  }
};

}  // namespace fuseblock
