// The CUDA launcher of layer_norm (layer_norm.h).
//
// Two reductions: the sum, then with its mean m the sums of (x - m) and (x - m)^2. The first of
// them says how far m, which has the rounding of a long sum, is from the mean; m is put right by it
// and the variance too. So the mean is rounded once, and a constant row's is the constant.
#include "kernels/base/inverse_sqrt.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/layer_norm/layer_norm_cuda.h"

namespace fuseblock {
namespace {

template <typename Y, typename W>
struct LayerNormPolicy {
  static constexpr float kFill = 0.0f;
  static constexpr int kReductions = 3;
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

  template <typename Row>
  __device__ Stats Reduce(Row& row) const {
    const auto sum = row.template Reduce<1>(Sum(), [](auto& partial, const auto& h, auto) {
#pragma unroll
      for (const float value : h) partial[0] += value;
    });
    const float near_mean = sum.values[0] * inverse_cols;
    const auto about =
        row.template Reduce<2>(Sum(), [near_mean](auto& partial, const auto& h, auto left) {
          constexpr int N = sizeof(h) / sizeof(float);
          const auto add = [&](float value) {
            const float d = value - near_mean;
            partial[0] += d;
            partial[1] = __fmaf_rn(d, d, partial[1]);
          };
          if (left >= N) {
#pragma unroll
            for (const float value : h) add(value);
          } else if (left > 0) {
        // What lies beyond the row's end must not add mean^2.
#pragma unroll
            for (int i = 0; i < N; ++i) {
              if (i < left) add(h[i]);
            }
          }
        });
    const float* moments = about.values;
    const float correction = moments[0] * inverse_cols;
    const float variance = __fmaf_rn(-correction, correction, moments[1] * inverse_cols);
    return {near_mean + correction, InverseSqrt((variance < 0.0f ? 0.0f : variance) + eps)};
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
    Unit<Y, N> out;
    out.SetRounded(values);
    out.template Store<kVector>(y + row * y_stride + col, left);
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
        const LayerNormPolicy<decltype(out), W> policy{
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
