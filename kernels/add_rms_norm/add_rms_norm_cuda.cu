// The CUDA launcher of add_rms_norm (add_rms_norm.h).
#include "kernels/add_rms_norm/add_rms_norm_cuda.h"
#include "kernels/base/rms_norm.cuh"

namespace fuseblock {
namespace {

// h = x + r, rounded to T when that is what the norm must see; stored as residual_out on the way.
template <typename T>
struct SumSource {
  static constexpr int kUnit = 16 / sizeof(T);
  struct Raw {
    Unit<T, kUnit> x, r;
  };

  const T* x;
  const T* r;
  int64_t x_stride, r_stride;
  void* residual_out = nullptr;  // null: none
  int64_t residual_out_stride = 0;
  bool residual_out_float = false;  // FP32, else T
  bool rounded = false;

  __device__ void SetRow(int64_t row) {
    x += row * x_stride;
    r += row * r_stride;
    if (residual_out == nullptr) return;
    const int64_t offset = row * residual_out_stride;
    if (residual_out_float) {
      residual_out = static_cast<float*>(residual_out) + offset;
    } else {
      residual_out = static_cast<T*>(residual_out) + offset;
    }
  }
  template <bool kVector, typename Left>
  __device__ void Load(Raw& raw, int64_t col, Left left, float fill) const {
    raw.x.template LoadOrFill<kVector>(x + col, left, fill);
    raw.r.template LoadOrFill<kVector>(r + col, left, 0.0f);
  }
  __device__ void Values(const Raw& raw, float (&h)[kUnit]) const {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) h[i] = ToFloat(raw.x.v[i]) + ToFloat(raw.r.v[i]);
    if (!rounded) return;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) h[i] = RoundTo<T>(h[i]);
  }
  template <bool kVector, typename Left>
  __device__ void Store(const float (&h)[kUnit], int64_t col, Left left) const {
    if (residual_out == nullptr) return;
    if (residual_out_float) {
      StoreRounded<kVector>(h, static_cast<float*>(residual_out) + col, left);
    } else {
      StoreRounded<kVector>(h, static_cast<T*>(residual_out) + col, left);
    }
  }
};

}  // namespace

int LaunchAddRmsNorm(const FuseblockCudaRows* x, const FuseblockCudaRows* r, const void* weight,
                     int weight_dtype, float eps, float weight_offset, int normalised_first,
                     int hf_sum, const FuseblockCudaRows* y, const FuseblockCudaRows* residual_out,
                     void* stream) {
  const int float_dtype = static_cast<int>(DType::kF32);
  if (x->dtype != y->dtype || r->dtype != y->dtype) return cudaErrorInvalidValue;
  if (residual_out != nullptr && residual_out->dtype != y->dtype &&
      residual_out->dtype != float_dtype) {
    return cudaErrorInvalidValue;
  }
  if (weight == nullptr) weight_dtype = y->dtype;
  const RmsParams params{eps, weight_offset, normalised_first != 0};
  return VisitCudaFloat(y->dtype, [&](auto value) {
    using T = decltype(value);
    return VisitSameOrFloat(value, y->dtype, weight_dtype, [&](auto w) {
      using Source = SumSource<T>;
      Source source{static_cast<T*>(x->data), static_cast<T*>(r->data), x->stride, r->stride};
      source.rounded = hf_sum != 0;
      if (residual_out != nullptr) {
        source.residual_out = residual_out->data;
        source.residual_out_stride = residual_out->stride;
        source.residual_out_float = residual_out->dtype == float_dtype;
      }
      const bool aligned =
          Aligned16(*x) && Aligned16(*r) && (residual_out == nullptr || Aligned16(*residual_out));
      return LaunchRmsRows<T, decltype(w)>(*y, weight, params, aligned, source,
                                           static_cast<cudaStream_t>(stream));
    });
  });
}

}  // namespace fuseblock
