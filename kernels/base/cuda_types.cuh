// Element types on the device, and units: the few neighbouring elements of a row that one thread
// loads, computes and stores together.
//
// A unit is 16 bytes of the widest access when everything is aligned and complete; otherwise its
// elements are loaded and stored one by one. The arithmetic in between is the same code, so the
// result's bits do not depend on the alignment.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/base/cuda_rows.h"
#include "kernels/base/dtype.h"

namespace fuseblock {

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// Nearest even; a NaN stays a NaN, overflow gives infinity, subnormals are kept.
template <typename T>
__device__ T FromFloat(float value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

// value as a tensor of T holds it.
template <typename T>
__device__ float RoundTo(float value) {
  return ToFloat(FromFloat<T>(value));
}

// One access to global memory: the compiler splits the assignment of a uint4 that was put together
// from smaller parts.
__device__ inline void StorePiece(uint4* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ inline void StorePiece(uint2* to, uint2 v) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(v.x), "r"(v.y)
               : "memory");
}
__device__ inline void StorePiece(uint* to, uint v) { *to = v; }

template <typename T, int N>
struct Unit {
  static constexpr int kBytes = N * static_cast<int>(sizeof(T));
  static constexpr int kPiece = kBytes < 16 ? kBytes : 16;  // one access
  static_assert(kPiece == 4 || kPiece == 8 || kPiece == 16 || N == 1);
  using Piece =
      std::conditional_t<kPiece == 16, uint4, std::conditional_t<kPiece == 8, uint2, uint>>;

  alignas(kPiece) T v[N];

  __device__ void LoadAligned(const T* from) {
    if constexpr (N == 1) {
      v[0] = from[0];
    } else {
#pragma unroll
      for (int i = 0; i < kBytes / kPiece; ++i) {
        reinterpret_cast<Piece*>(v)[i] = reinterpret_cast<const Piece*>(from)[i];
      }
    }
  }
  // All of it when kVector, which says that it is aligned and whole; else the first `count`.
  template <bool kVector, typename Count>
  __device__ void Load(const T* from, Count count) {
    if constexpr (!kVector) {
      LoadSome(from, count < N ? static_cast<int>(count) : N);
    } else {
      LoadAligned(from);
    }
  }
  // The same for a count of any sign; elements from there on become `fill`.
  template <bool kVector, typename Count>
  __device__ void LoadOrFill(const T* from, Count count, float fill) {
    if (kVector && count > 0) return LoadAligned(from);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = !kVector && i < count ? from[i] : FromFloat<T>(fill);
  }
  template <bool kVector, typename Count>
  __device__ void Store(T* to, Count count) const {
    if constexpr (kVector) {
      StoreAligned(to);
    } else {
      StoreSome(to, count < N ? static_cast<int>(count) : N);
    }
  }
  // The values rounded to T, two by one instruction where T has 16 bits.
  __device__ void SetRounded(const float (&values)[N]) {
    if constexpr (N % 2 == 0 && std::is_same_v<T, __nv_bfloat16>) {
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(values[i], values[i + 1]);
        v[i] = two.x;
        v[i + 1] = two.y;
      }
    } else if constexpr (N % 2 == 0 && std::is_same_v<T, __half>) {
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const __half2 two = __floats2half2_rn(values[i], values[i + 1]);
        v[i] = two.x;
        v[i + 1] = two.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = FromFloat<T>(values[i]);
    }
  }
  // The first `count` elements, zeros after them.
  __device__ void LoadSome(const T* from, int64_t count) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = i < count ? from[i] : FromFloat<T>(0.0f);
  }
  __device__ void StoreAligned(T* to) const {
    if constexpr (N == 1) {
      to[0] = v[0];
    } else {
#pragma unroll
      for (int i = 0; i < kBytes / kPiece; ++i) {
        StorePiece(reinterpret_cast<Piece*>(to) + i, reinterpret_cast<const Piece*>(v)[i]);
      }
    }
  }
  __device__ void StoreSome(T* to, int64_t count) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) to[i] = v[i];
    }
  }
};

// The values rounded to T: all of them when kVector, as in Unit::Store, else the first `count`.
template <bool kVector, typename T, int N, typename Count>
__device__ void StoreRounded(const float (&values)[N], T* to, Count count) {
  Unit<T, N> out;
  out.SetRounded(values);
  out.template Store<kVector>(to, count);
}

// Calls f(T{}) with the device type of a floating dtype; cudaErrorInvalidValue for any other.
template <typename F>
cudaError_t VisitCudaFloat(int dtype, F&& f) {
  switch (static_cast<DType>(dtype)) {
    case DType::kF32:
      return f(float{});
    case DType::kF16:
      return f(__half{});
    case DType::kBF16:
      return f(__nv_bfloat16{});
    default:
      return cudaErrorInvalidValue;
  }
}

// Calls f(Out{}, In{}) for in_dtype that is out_dtype or FP32; cudaErrorInvalidValue else.
template <typename Out, typename F>
cudaError_t VisitSameOrFloat(Out out, int out_dtype, int in_dtype, F&& f) {
  if (in_dtype == out_dtype) return f(out);
  if (in_dtype == static_cast<int>(DType::kF32)) return f(float{});
  return cudaErrorInvalidValue;
}

}  // namespace fuseblock
