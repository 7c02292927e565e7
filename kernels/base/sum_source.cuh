// The rows h = x + r as a source of rows.cuh.
#pragma once

#include "kernels/base/cuda_types.cuh"

namespace fuseblock {

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

}  // namespace fuseblock
