// Softmax as a policy of rows.cuh, for softmax and softmax_masked.
//
// e^(x - max) once for a row in registers. For FP32 results expf (1 ulp); for 16-bit ones the
// hardware's power of two, whose 2^-22 and the argument's rounding are nothing beside 2^-12.
#pragma once

#include <limits>

#include "kernels/base/rows.cuh"

namespace fuseblock {

// e^x for x <= 0, as accurate as a tensor of Y deserves.
template <typename Y>
__device__ float ExpFor(float x) {
  if constexpr (std::is_same_v<Y, float>) {
    return expf(x);
  } else {
    float power;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504088896341f));
    return power;
  }
}

// kEmptyIsZero: a row that is all -inf gives zeros; otherwise, as the formula has it, NaN.
template <typename Y, bool kEmptyIsZero>
struct SoftmaxPolicy {
  static constexpr float kFill = -std::numeric_limits<float>::infinity();
  static constexpr int kReductions = 2;
  static constexpr int kColumnBytes = 0;
  template <int N>
  struct Columns {};
  struct Stats {
    float max, inverse;
  };

  Y* y;
  int64_t y_stride;

  template <bool kVector, int N, typename Left>
  __device__ void LoadColumns(Columns<N>&, int64_t, Left) const {}

  template <typename Row, typename Reducer>
  __device__ Stats Reduce(Row& row, Reducer reduce) const {
    float max[1] = {kFill};
    row.ForEach([&](const auto& h, auto) {
#pragma unroll
      for (const float value : h) max[0] = Max()(max[0], value);
    });
    reduce(max, Max());
    // -inf less itself is NaN: what an empty row's result is, unless it is to be zero.
    const bool empty = kEmptyIsZero && max[0] == kFill;
    if (empty) max[0] = 0.0f;
    float sum[1] = {0.0f};
    row.ForEach([&](auto& h, auto) {
#pragma unroll
      for (float& value : h) {
        value = ExpFor<Y>(value - max[0]);
        sum[0] += value;
      }
    });
    reduce(sum, Sum());
    return {max[0], empty ? 0.0f : 1.0f / sum[0]};
  }

  template <bool kVector, bool kKept, int N, typename Left>
  __device__ void Write(const Stats& stats, const Columns<N>&, const float (&h)[N], int64_t row,
                        int64_t col, Left left) const {
    Unit<Y, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float power = kKept ? h[i] : ExpFor<Y>(h[i] - stats.max);
      out.v[i] = FromFloat<Y>(power * stats.inverse);
    }
    out.template Store<kVector>(y + row * y_stride + col, left);
  }
};

}  // namespace fuseblock
