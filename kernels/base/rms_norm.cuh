// RMS normalisation as a policy of rows.cuh, for rms_norm and add_rms_norm.
//
// The sum of squares is by FMA, and the factor 1 / sqrt within 1 ulp of FP32 (InverseSqrt).
#pragma once

#include "kernels/base/inverse_sqrt.cuh"
#include "kernels/base/rows.cuh"

namespace fuseblock {

// kNormalisedFirst: RmsNormForm::kNormalisedFirst.
template <typename Y, typename W, bool kNormalisedFirst>
struct RmsPolicy {
  static constexpr float kFill = 0.0f;
  static constexpr int kReductions = 1;
  template <int N>
  using Columns = Unit<W, N>;

  Y* y;
  int64_t y_stride;
  const W* weight;  // null: none
  float inverse_cols, eps, weight_offset;

  template <bool kVector, int N, typename Left>
  __device__ void LoadColumns(Columns<N>& w, int64_t col, Left left) const {
    if (weight != nullptr) w.template Load<kVector>(weight + col, left);
  }

  // The scale.
  template <typename Row>
  __device__ float Reduce(Row& row) const {
    const auto squares = row.template Reduce<1>(Sum(), [](auto& sum, const auto& h, auto) {
#pragma unroll
      for (const float value : h) sum[0] = __fmaf_rn(value, value, sum[0]);
    });
    return InverseSqrt(squares.values[0] * inverse_cols + eps);
  }

  template <bool kVector, bool kKept, int N, typename Left>
  __device__ void Write(float scale, const Columns<N>& w, const float (&h)[N], int64_t row,
                        int64_t col, Left left) const {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = h[i] * scale;
      if constexpr (kNormalisedFirst) values[i] = RoundTo<Y>(values[i]);
    }
    if (weight != nullptr && weight_offset == 0.0f) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] *= ToFloat(w.v[i]);
    } else if (weight != nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] *= ToFloat(w.v[i]) + weight_offset;
    }
    StoreRounded<kVector>(values, y + row * y_stride + col, left);
  }
};

struct RmsParams {
  float eps, weight_offset;
  bool normalised_first;
};

template <typename Y, typename W, typename Source>
cudaError_t LaunchRmsRows(const FuseblockCudaRows& y, const void* weight, const RmsParams& params,
                          bool aligned, const Source& source, cudaStream_t stream) {
  aligned = aligned && Aligned16(y) && Aligned16(weight, 1, 0, 1);
  const auto launch = [&](auto normalised_first) {
    const RmsPolicy<Y, W, decltype(normalised_first)::value> policy{
        static_cast<Y*>(y.data),           y.stride,   static_cast<const W*>(weight),
        1.0f / static_cast<float>(y.cols), params.eps, params.weight_offset};
    return LaunchRows({y.rows, y.cols}, aligned, source, policy, stream);
  };
  return params.normalised_first ? launch(std::true_type()) : launch(std::false_type());
}

}  // namespace fuseblock
