// The two forms of GELU on the device.
//
// Both are max(x, 0) - |x| S(|x|) with S falling from 1/2 to 0: Phi(-t) or sigmoid(-v(t)). The
// subtraction loses nothing, since |x| S is at most half of a positive x, and for a negative x the
// result is -|x| S itself, whose relative precision is kept. gelu(-inf) is 0, gelu(+inf) is +inf,
// NaN stays NaN, nothing finite overflows.
//
// GeluErf and GeluTanh are within a few ulp of FP32, down to the smallest subnormal. A 16-bit
// output is worth less arithmetic, and at the memory's speed there is no time for more: GeluFor
// gives it 2^-18 of the value where |x| <= 5, a 64th of FP16's half spacing, and 2^-16 in BF16's
// far tail, where the exponent's roundings weigh more, in 15 instructions and fewer.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/base/approx.cuh"
#include "kernels/base/gelu.h"

namespace fuseblock {

// c[0] + c[1] x + ...
template <int N>
__device__ float Polynomial(const float (&c)[N], float x) {
  float sum = c[N - 1];
#pragma unroll
  for (int i = N - 2; i >= 0; --i) sum = __fmaf_rn(sum, x, c[i]);
  return sum;
}

// e^-(x + low) = fraction * 2^-exponent for 0 <= x <= 300 and a small low, the fraction within
// 2^-22.
struct NegativeExponential {
  float fraction;
  int exponent;
};

__device__ inline NegativeExponential ExpOfMinus(float x, float low) {
  constexpr float kLog2E = 0x1.715476p+0f, kLog2ELow = 0x1.4ae0cp-26f;
  constexpr float kShift = 0x1.8p+23f;  // adding it rounds to a whole number, in the low bits
  const float shifted = __fmaf_rn(x, kLog2E, kShift);
  float rest = __fmaf_rn(x, -kLog2E, shifted - kShift);
  rest = __fmaf_rn(x, -kLog2ELow, rest);
  rest = __fmaf_rn(low, -kLog2E, rest);
  return {Exp2Approx(rest), __float_as_int(shifted) - __float_as_int(kShift)};
}

__device__ inline float PowerOfTwo(int k) { return __int_as_float((127 + k) << 23); }

// max(x, 0) - value * 2^-exponent, where exponent is 0 .. 200.
__device__ inline float WithoutTail(float x, float value, int exponent) {
  const int first = exponent / 2;  // in two steps, only the second of which rounds
  const float tail = value * PowerOfTwo(-first) * PowerOfTwo(first - exponent);
  return (x < 0.0f ? 0.0f : x) - tail;
}

// |x| S = value * 2^-exponent for 0 <= exponent <= 200.
struct GeluTail {
  float value;
  int exponent;

  // |x| S factor; where the product with half of the power rounds, too, the result is 0.
  __device__ float Times(float factor) const {
    const int first = exponent / 2;
    return value * (factor * PowerOfTwo(-first)) * PowerOfTwo(first - exponent);
  }
};

// Phi(-t) = e^(-t^2/2) R(t) with R = N / D on [0, kGeluErfZero], as in gelu-inl.h.
__device__ inline GeluTail GeluErfTail(float x) {
  constexpr float kN[] = {0x1p-1f, 0x1.c1d36p-2f, 0x1.78c49ap-3f, 0x1.4ee5a6p-5f, 0x1.102f48p-8f};
  constexpr float kD[] = {1.0f,          0x1.ad2be2p+0f, 0x1.349eb4p+0f,
                          0x1.e2b8bp-2f, 0x1.a3c19cp-4f, 0x1.552116p-7f};
  const float t = fminf(fabsf(x), kGeluErfZero);
  const float square = t * t;
  const NegativeExponential e = ExpOfMinus(0.5f * square, 0.5f * __fmaf_rn(t, t, -square));
  const float ratio = Polynomial(kN, t) * ReciprocalApprox(Polynomial(kD, t));
  return {t * e.fraction * ratio, e.exponent};
}

__device__ inline float GeluErf(float x) {
  const GeluTail tail = GeluErfTail(x);
  return WithoutTail(x, tail.value, tail.exponent);
}

// sigmoid(-v), v = 2 sqrt(2 / pi) (t + 0.044715 t^3) as a sum of two, as in gelu-inl.h.
struct GeluTanhExponent {
  float t, v;
  NegativeExponential e;  // e^-v
};

__device__ inline GeluTanhExponent GeluTanhExponentOf(float x) {
  constexpr float kA = 0x1.988454p+0f, kALow = -0x1.857936p-25f;
  constexpr float kB = 0x1.2444f2p-4f, kBLow = 0x1.49b16ap-29f;
  const float t = fminf(fabsf(x), kGeluTanhZero);
  const float square = t * t;
  const float cubic = kB * square;
  float low = __fmaf_rn(kBLow, square, __fmaf_rn(kB, square, -cubic));
  low = __fmaf_rn(kB, __fmaf_rn(t, t, -square), low);
  const float slope = kA + cubic;
  const float cubic_part = slope - kA;
  low += (kA - (slope - cubic_part)) + (cubic - cubic_part);
  low += kALow;
  const float v = t * slope;
  return {t, v, ExpOfMinus(v, __fmaf_rn(t, low, __fmaf_rn(t, slope, -v)))};
}

__device__ inline float GeluTanh(float x) {
  const auto [t, v, e] = GeluTanhExponentOf(x);
  if (v < 80.0f) {  // e^-v is a normal number, and t e^-v too
    const float near = e.fraction * PowerOfTwo(-e.exponent);
    return fmaxf(x, 0.0f) - t * near * ReciprocalApprox(1.0f + near);
  }
  return WithoutTail(x, t * e.fraction, e.exponent);  // e^-v is nothing beside 1
}

// Where gelu may be a subnormal number.
constexpr float kGeluErfFar = -12.5f, kGeluTanhFar = -9.0f;

__device__ inline float GeluErfTimes(float x, float factor) {
  const bool far = x < kGeluErfFar && x > -kGeluErfZero;
  return far ? -GeluErfTail(x).Times(factor) : GeluErf(x) * factor;
}

// From kGeluTanhFar down e^-v is nothing beside 1: v is 66 and more.
__device__ inline float GeluTanhTimes(float x, float factor) {
  const bool far = x < kGeluTanhFar && x > -kGeluTanhZero;
  if (!far) return GeluTanh(x) * factor;
  const GeluTanhExponent at = GeluTanhExponentOf(x);
  return -GeluTail{at.t * at.e.fraction, at.e.exponent}.Times(factor);
}

// For 16-bit outputs: e^.. is kept times 2^16, so that it is a normal number as long as the result
// may be a subnormal of BF16; R is a polynomial of degree 6 in 1 / (1 + 0.3 t), within 1.9e-6 on
// [0, 15]. kExp2 is Exp2Approx, or Exp2 where a factor may make the result of what that takes for
// 0.
template <float (*kExp2)(float)>
__device__ float GeluErfHalf(float x) {
  constexpr float kR[] = {-0x1.4ea66p-14f * 0x1p-16f, 0x1.f0bdb2p-4f * 0x1p-16f,
                          0x1.b5101p-4f * 0x1p-16f,   0x1.516f9ap-3f * 0x1p-16f,
                          -0x1.8e7becp-5f * 0x1p-16f, 0x1.ecb0dcp-3f * 0x1p-16f,
                          -0x1.5a7e12p-4f * 0x1p-16f};
  const float e = kExp2(__fmaf_rn(x * x, -0x1.715476p-1f, 16.0f));
  const float t = fminf(fabsf(x), 15.0f);
  const float y = ReciprocalApprox(__fmaf_rn(t, 0x1.333334p-2f, 1.0f));
  return __fmaf_rn(-(t * e), Polynomial(kR, y), fmaxf(x, 0.0f));
}

// v in units of ln 2.
template <float (*kExp2)(float)>
__device__ float GeluTanhHalf(float x) {
  const float v = x * __fmaf_rn(x * x, 0x1.a5a7dp-4f, 0x1.26aec2p+1f);
  const float e = kExp2(16.0f - fabsf(v));
  const float t = fminf(fabsf(x), 15.0f);
  return __fmaf_rn(-(t * e), ReciprocalApprox(e + 65536.0f), fmaxf(x, 0.0f));
}

// gelu(x) as accurate as a tensor of T deserves.
template <typename T, GeluForm kForm>
__device__ float GeluFor(float x) {
  constexpr bool kErf = kForm == GeluForm::kErf;
  if constexpr (std::is_same_v<T, float>) {
    return kErf ? GeluErf(x) : GeluTanh(x);
  } else {
    return kErf ? GeluErfHalf<Exp2Approx>(x) : GeluTanhHalf<Exp2Approx>(x);
  }
}

// gelu(x) times a factor, as accurate as a tensor of T deserves; 0 times it where gelu(x) is 0 in
// FP32. For FP32 what would be a subnormal number keeps its exponent until the factor is applied.
template <typename T, GeluForm kForm>
__device__ float GeluTimesFor(float x, float factor) {
  constexpr bool kErf = kForm == GeluForm::kErf;
  if constexpr (std::is_same_v<T, float>) {
    return kErf ? GeluErfTimes(x, factor) : GeluTanhTimes(x, factor);
  } else {
    return (kErf ? GeluErfHalf<Exp2>(x) : GeluTanhHalf<Exp2>(x)) * factor;
  }
}

}  // namespace fuseblock
