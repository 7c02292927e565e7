// silu(x) = x / (1 + e^-x) on the device, and silu(x) times a factor, used by silu and swiglu.
//
// -inf gives -0, +inf gives +inf, NaN stays NaN, nothing finite overflows, and results down to the
// smallest normal (x near -91) are kept, for 16-bit outputs also the subnormals of BF16. Times a
// factor it is rounded as if silu had FP32's precision at any magnitude: what would be a subnormal
// number is kept times a power of two until the factor is applied.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/base/approx.cuh"

namespace fuseblock {

constexpr float kSiluZero = -200.0f;  // silu is 0 from here down, also times any finite FP32

// Below -80 the quotient would lose bits (e^-x nears overflow, and 1 + e^-x is e^-x there): it is
// x e^x instead, in two factors; the sum in the exponent is exact.
constexpr float kSiluFar = -80.0f;

__device__ inline float SiluExact(float x) {
  constexpr float kExpMinus32 = 1.2664165549094176e-14f;
  const float from = x < kSiluZero ? kSiluZero : x;
  const bool far = from < kSiluFar;
  const float e = expf(far ? from + 32.0f : -from);
  return far ? from * e * kExpMinus32 : from / (1.0f + e);
}

__device__ inline float SiluExactTimes(float x, float factor) {
  constexpr float kRest = 3.2606628e-26f;  // e^-128 2^100
  const bool far = x < kSiluFar;
  const float from = x < kSiluZero ? kSiluZero : x;
  const float e = expf(far ? x + 128.0f : -x);
  return far ? from * e * (factor * 0x1p-100f) * kRest : from / (1.0f + e) * factor;
}

// For 16-bit outputs, at the memory's speed: with t = e^-|x|, which cannot overflow, it is
// x / (1 + t) for x >= 0 and x t / (1 + t) else. t is kept times 2^24, so that it is a normal
// number as long as x t may be a subnormal of BF16. Within 74 units of 2^-24 of the value: the
// exponent, at most 133 in size, is off by 2^-18 from its rounding (44.4 units of t) and by 1.4e-8
// of itself from log2(e)'s (20.6); the power of two is off by 4, the reciprocal by 2, and there are
// three roundings.
__device__ inline float SiluHalf(float x) {
  const float from = x < kSiluZero ? kSiluZero : x;
  const float t = Exp2Approx(__fmaf_rn(fabsf(from), -0x1.715476p+0f, 24.0f));
  const float numerator = from < 0.0f ? from * t * 0x1p-24f : from;
  return numerator * ReciprocalApprox(__fmaf_rn(t, 0x1p-24f, 1.0f));
}

// The same times a factor. Below -64 t is nothing beside the 1 and is kept times 2^150; the factor
// takes 2^-64 of that first, so that no product leaves FP32's range before the last. There x may be
// 191 in size, log2(e) costs 42 units, and it is within 96.
__device__ inline float SiluHalfTimes(float x, float factor) {
  const bool far = x < -64.0f;
  const float from = x < kSiluZero ? kSiluZero : x;
  const float t = Exp2Approx(__fmaf_rn(fabsf(x), -0x1.715476p+0f, far ? 150.0f : 0.0f));
  const float product = from < 0.0f ? from * t : from;
  return far ? product * (factor * 0x1p-64f) * 0x1p-86f
             : product * ReciprocalApprox(1.0f + t) * factor;
}

// silu(x) as accurate as a tensor of T deserves.
template <typename T>
__device__ float SiluFor(float x) {
  return std::is_same_v<T, float> ? SiluExact(x) : SiluHalf(x);
}

template <typename T>
__device__ float SiluTimesFor(float x, float factor) {
  return std::is_same_v<T, float> ? SiluExactTimes(x, factor) : SiluHalfTimes(x, factor);
}

// x / (1 + e^-x) as an eager framework evaluates it in FP32: -0 where e^-x overflows, below -88.72.
__device__ inline float SiluEager(float x) { return x / (1.0f + expf(-x)); }

}  // namespace fuseblock
