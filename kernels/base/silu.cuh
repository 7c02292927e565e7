// silu(x) = x / (1 + e^-x) on the device, used by silu and swiglu.
//
// -inf gives -0, +inf gives +inf, NaN stays NaN, nothing finite overflows, and results down to the
// smallest normal (x near -91) are kept, for 16-bit outputs also the subnormals of BF16.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/base/approx.cuh"

namespace fuseblock {

constexpr float kSiluZero = -200.0f;  // silu is 0 from here down

// Below -80 the quotient would lose bits (e^-x nears overflow, and 1 + e^-x is e^-x there): it is
// x * e^(x + 32) * e^-32 instead, whose x + 32 is exact.
__device__ inline float SiluExact(float x) {
  constexpr float kFar = -80.0f;
  constexpr float kExpMinus32 = 1.2664165549094176e-14f;
  const float from = x < kSiluZero ? kSiluZero : x;
  const bool far = from < kFar;
  const float e = expf(far ? from + 32.0f : -from);
  return far ? from * e * kExpMinus32 : from / (1.0f + e);
}

// For 16-bit outputs, at the memory's speed: with t = e^-|x|, which cannot overflow, it is
// x / (1 + t) for x >= 0 and x t / (1 + t) else. t is kept times 2^24, so that it is a normal
// number as long as x t may be a subnormal of BF16. Within 72 units of 2^-24 of the value: the
// exponent, at most 128 in size, is off by 2^-18 from its rounding (44 units of t) and by 1.4e-8 of
// itself from log2(e)'s (20), the rest by 2^-22 and five roundings.
__device__ inline float SiluHalf(float x) {
  const float from = x < kSiluZero ? kSiluZero : x;
  const float t = Exp2Approx(__fmaf_rn(fabsf(from), -0x1.715476p+0f, 24.0f));
  const float numerator = from < 0.0f ? from * t * 0x1p-24f : from;
  return numerator * ReciprocalApprox(__fmaf_rn(t, 0x1p-24f, 1.0f));
}

// silu(x) as accurate as a tensor of T deserves.
template <typename T>
__device__ float SiluFor(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return SiluExact(x);
  } else {
    return SiluHalf(x);
  }
}

// x / (1 + e^-x) as an eager framework evaluates it in FP32: -0 where e^-x overflows, below -88.72.
__device__ inline float SiluEager(float x) { return x / (1.0f + expf(-x)); }

}  // namespace fuseblock
