// silu(x) = x / (1 + e^-x) on the device, used by silu and swiglu.
//
// Below -80 the quotient would lose bits (e^-x nears overflow, and 1 + e^-x is e^-x there): it is
// x * e^(x + 32) * e^-32 instead, whose x + 32 is exact, so that results down to the smallest
// normal (x near -91) are kept. -inf gives -0, +inf gives +inf, NaN stays NaN, nothing finite
// overflows. kPrecise: FP32's own accuracy (about 3 ulp); otherwise the hardware's exponential and
// reciprocal, whose relative error of about 2^-20 is far below what a 16-bit result rounds away.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

namespace fuseblock {

constexpr float kSiluFar = -80.0f;
constexpr float kSiluZero = -200.0f;  // silu is 0 from here down
constexpr float kExpMinus32 = 1.2664165549094176e-14f;
constexpr float kLog2E = 1.4426950408889634f;

template <bool kPrecise>
__device__ float SiluExp(float x) {
  if constexpr (kPrecise) {
    return expf(x);
  } else {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * kLog2E));
    return result;
  }
}

template <bool kPrecise>
__device__ float SiluQuotient(float x, float divisor) {
  if constexpr (kPrecise) {
    return x / divisor;
  } else {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(divisor));
    return x * reciprocal;
  }
}

template <bool kPrecise>
__device__ float SiluOf(float x) {
  const float from = x < kSiluZero ? kSiluZero : x;
  const bool far = from < kSiluFar;
  const float e = SiluExp<kPrecise>(far ? from + 32.0f : -from);
  return far ? from * e * kExpMinus32 : SiluQuotient<kPrecise>(from, 1.0f + e);
}

// The form that a tensor of T deserves.
template <typename T>
__device__ float SiluFor(float x) {
  return SiluOf<std::is_same_v<T, float>>(x);
}

}  // namespace fuseblock
