// silu(x) = x / (1 + e^-x) on the device, used by silu and swiglu.
//
// Below -80 the quotient would lose bits (e^-x nears overflow, and 1 + e^-x is e^-x there): it is
// x * e^(x + 32) * e^-32 instead, whose x + 32 is exact, so that results down to the smallest
// normal (x near -91) are kept. -inf gives -0, +inf gives +inf, NaN stays NaN, nothing finite
// overflows. For a 16-bit result the hardware's reciprocal (within 1 ulp of FP32) stands in for the
// division.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

namespace fuseblock {

constexpr float kSiluFar = -80.0f;
constexpr float kSiluZero = -200.0f;  // silu is 0 from here down
constexpr float kExpMinus32 = 1.2664165549094176e-14f;

template <typename T>
__device__ float SiluQuotient(float x, float divisor) {
  if constexpr (std::is_same_v<T, float>) {
    return x / divisor;
  } else {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(divisor));
    return x * reciprocal;
  }
}

// silu(x) as accurate as a tensor of T deserves.
template <typename T>
__device__ float SiluFor(float x) {
  const float from = x < kSiluZero ? kSiluZero : x;
  const bool far = from < kSiluFar;
  const float e = expf(far ? from + 32.0f : -from);
  return far ? from * e * kExpMinus32 : SiluQuotient<T>(from, 1.0f + e);
}

// x / (1 + e^-x) as an eager framework evaluates it in FP32: -0 where e^-x overflows, below -88.72.
__device__ inline float SiluEager(float x) { return x / (1.0f + expf(-x)); }

}  // namespace fuseblock
