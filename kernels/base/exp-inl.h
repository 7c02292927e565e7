// e^x on vectors, for one Highway target at a time, and exact products for its arguments.
#include "kernels/base/simd-inl.h"

#if defined(FUSEBLOCK_KERNELS_BASE_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_EXP_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_EXP_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_EXP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

// 2^k for whole k from -126 to 127.
HWY_INLINE VF PowerOfTwo(VF k) {
  const DI32 di;
  const auto biased = hn::Add(hn::ConvertTo(di, k), hn::Set(di, 127));
  return hn::BitCast(DF(), hn::ShiftLeft<23>(biased));
}

struct Exponential {
  VF fraction;      // 0.707 .. 1.415
  VF exponent;      // whole
  VF power_of_two;  // 2^exponent where that is a normal number
};

// x = k ln 2 + r with k whole and |r| <= 0.347, for |x| <= 300. ln 2 is split so that k * kLn2High
// is exact without FMA.
struct ReducedExponent {
  VF k, power_of_two, r;
};

HWY_INLINE ReducedExponent ReduceExponent(VF x) {
  const DF d;
  constexpr float kLn2High = 0x1.62ep-1f;
  constexpr float kLn2Low = 0x1.0bfbe8p-15f;
  constexpr float kLog2E = 0x1.715476p+0f;
  // Adding 1.5 * 2^23 rounds to a whole number, which then is in the low bits; 127 more make it the
  // biased exponent of 2^k.
  const VF shift = hn::Set(d, 0x1.8p+23f + 127);
  const VF shifted = hn::MulAdd(x, hn::Set(d, kLog2E), shift);
  const VF k = hn::Sub(shifted, shift);
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(DU32(), shifted)));
  const VF r = hn::NegMulAdd(k, hn::Set(d, kLn2High), x);
  return {k, power, hn::NegMulAdd(k, hn::Set(d, kLn2Low), r)};
}

// e^r for |r| <= 0.35, within 1 ulp: 1 + r + r^2 q(r), q a minimax polynomial (Chebyshev fit,
// 1.4e-9). Roundings, in ulps of a result in [0.707, 1): the last sum 0.5, r + r^2 q 0.25, r's own
// 0.13, q's 0.1.
HWY_INLINE VF ExpNearZero(VF r) {
  const DF d;
  VF q = hn::Set(d, 0x1.a125f6p-13f);
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.6d444ap-10f));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.1110ep-7f));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.5554e8p-5f));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.555556p-3f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.5f));
  return hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), hn::Set(d, 1.0f));
}

// e^x = fraction * 2^exponent, within 1 ulp of the fraction, for |x| <= 300.
HWY_INLINE Exponential Exp(VF x) {
  const ReducedExponent reduced = ReduceExponent(x);
  return {ExpNearZero(reduced.r), reduced.k, reduced.power_of_two};
}

// e^(x + low) for a low of at most a few last places of x, whose own rounding would be an error of
// |x| 2^-24.
HWY_INLINE Exponential ExpOfSum(VF x, VF low) {
  const ReducedExponent reduced = ReduceExponent(x);
  return {ExpNearZero(hn::Add(reduced.r, low)), reduced.k, reduced.power_of_two};
}

// 2^f for |f| <= 0.5, for a result of 16 bits: minimax, with its roundings within 4 units of 2^-24.
HWY_INLINE VF RoughExp2NearZero(VF f) {
  const DF d;
  VF p = hn::Set(d, 0x1.5c08e4p-10f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3d0c52p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b6e4p-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf918p-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e428p-1f));
  return hn::MulAdd(p, f, hn::Set(d, 0x1.000002p+0f));
}

// What rounding took from the product a * b, exactly; NaN where that overflows.
HWY_INLINE VF ProductError(VF a, VF b, VF product) {
#if HWY_NATIVE_FMA
  return hn::MulSub(a, b, product);
#else
  // Halves of 12 bits, whose products are exact.
  const DF d;
  const VF mask = hn::BitCast(d, hn::Set(DU32(), 0xFFFFF000u));
  const VF a_high = hn::And(a, mask), b_high = hn::And(b, mask);
  const VF a_low = hn::Sub(a, a_high), b_low = hn::Sub(b, b_high);
  VF error = hn::Sub(hn::Mul(a_high, b_high), product);
  error = hn::Add(error, hn::Mul(a_high, b_low));
  error = hn::Add(error, hn::Mul(a_low, b_high));
  return hn::Add(error, hn::Mul(a_low, b_low));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
