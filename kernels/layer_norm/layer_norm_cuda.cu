// The CUDA launcher of layer_norm (layer_norm.h).
//
// The sums of (x - c) and (x - c)^2 about a value c near the mean: the first says how far c is from
// it, and both the variance. So a constant row's mean is the constant. For FP32 c is the mean as a
// first sum gives it. 16-bit rows, whose speed is the number of instructions and of barriers, are
// summed once, about their first element; a row in which that lies more than two deviations from
// the mean, one in twenty of a normal distribution, is summed again about the mean.
#include "kernels/base/inverse_sqrt.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/layer_norm/layer_norm_cuda.h"

namespace fuseblock {
namespace {

template <typename X, typename Y, typename W>
struct LayerNormPolicy {
  static constexpr float kFill = 0.0f;
  static constexpr bool kUsesFirst = sizeof(X) == 2;
  static constexpr int kReductions = kUsesFirst ? 4 : 3;
  template <int N>
  struct Columns {
    Unit<W, N> weight, bias;
  };
  struct Stats {
    float mean, scale;
  };

  Y* y;
  int64_t y_stride;
  const W* weight;  // null: none
  const W* bias;    // null: none
  float inverse_cols, eps;

  template <bool kVector, int N, typename Left>
  __device__ void LoadColumns(Columns<N>& columns, int64_t col, Left left) const {
    if (weight != nullptr) columns.weight.template Load<kVector>(weight + col, left);
    if (bias != nullptr) columns.bias.template Load<kVector>(bias + col, left);
  }

  struct Moments {
    float correction, variance;  // the mean less c
  };

  template <typename Row>
  __device__ Moments MomentsAbout(Row& row, float c) const {
    const auto sums = row.template Reduce<2>(Sum(), [c](auto& partial, const auto& h, auto left) {
      constexpr int N = sizeof(h) / sizeof(float);
      const auto add = [&](float value) {
        const float d = value - c;
        partial[0] += d;
        partial[1] = __fmaf_rn(d, d, partial[1]);
      };
      if (left >= N) {
#pragma unroll
        for (const float value : h) add(value);
      } else if (left > 0) {
        // What lies beyond the row's end must not add c^2.
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (i < left) add(h[i]);
        }
      }
    });
    const float correction = sums.values[0] * inverse_cols;
    const float variance = __fmaf_rn(-correction, correction, sums.values[1] * inverse_cols);
    return {correction, variance < 0.0f ? 0.0f : variance};
  }

  template <typename Row>
  __device__ float MeanOf(Row& row) const {
    const auto sum = row.template Reduce<1>(Sum(), [](auto& partial, const auto& h, auto) {
#pragma unroll
      for (const float value : h) partial[0] += value;
    });
    return sum.values[0] * inverse_cols;
  }

  template <typename Row>
  __device__ Stats Reduce(Row& row) const {
    float c;
    if constexpr (kUsesFirst) {
      c = row.First();
    } else {
      c = MeanOf(row);
    }
    Moments about = MomentsAbout(row, c);
    if constexpr (kUsesFirst) {
      if (about.correction * about.correction > 4.0f * about.variance) {
        c += about.correction;
        about = MomentsAbout(row, c);
      }
    }
    return {c + about.correction, InverseSqrt(about.variance + eps)};
  }

  template <bool kVector, bool kKept, int N, typename Left>
  __device__ void Write(const Stats& stats, const Columns<N>& columns, const float (&h)[N],
                        int64_t row, int64_t col, Left left) const {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = (h[i] - stats.mean) * stats.scale;
    if (weight != nullptr && bias != nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = __fmaf_rn(values[i], ToFloat(columns.weight.v[i]), ToFloat(columns.bias.v[i]));
      }
    } else if (weight != nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] *= ToFloat(columns.weight.v[i]);
    } else if (bias != nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += ToFloat(columns.bias.v[i]);
    }
    StoreRounded<kVector>(values, y + row * y_stride + col, left);
  }
};

}  // namespace

int LaunchLayerNorm(const FuseblockCudaRows* x, const void* weight, const void* bias,
                    int weight_dtype, float eps, const FuseblockCudaRows* y, void* stream) {
  if (weight == nullptr && bias == nullptr) weight_dtype = y->dtype;
  const bool aligned =
      Aligned16(*x) && Aligned16(*y) && Aligned16(weight, 1, 0, 1) && Aligned16(bias, 1, 0, 1);
  return VisitCudaFloat(y->dtype, [&](auto out) {
    return VisitSameOrFloat(out, y->dtype, x->dtype, [&](auto in) {
      return VisitSameOrFloat(out, y->dtype, weight_dtype, [&](auto w) {
        using X = decltype(in);
        using W = decltype(w);
        const PlainSource<X> source{static_cast<const X*>(x->data), x->stride};
        const LayerNormPolicy<X, decltype(out), W> policy{
            static_cast<decltype(out)*>(y->data), y->stride,
            static_cast<const W*>(weight),        static_cast<const W*>(bias),
            1.0f / static_cast<float>(y->cols),   eps};
        return LaunchRows({y->rows, y->cols}, aligned, source, policy,
                          static_cast<cudaStream_t>(stream));
      });
    });
  });
}

}  // namespace fuseblock
