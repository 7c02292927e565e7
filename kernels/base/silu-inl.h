// SiLU on vectors, for one Highway target at a time: shared by silu and swiglu.
#include "kernels/base/simd-inl.h"

#if defined(FUSEBLOCK_KERNELS_BASE_SILU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_SILU_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_SILU_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_SILU_INL_H_
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
  VF fraction;  // 0.707 .. 1.415
  VF exponent;  // whole
};

// e^x = fraction * 2^exponent, within 1 ulp of the fraction, for |x| <= 300. With k = x / ln 2
// rounded and r = x - k ln 2, |r| <= 0.347, e^r is 1 + r + r^2 q(r), q a minimax polynomial
// (Chebyshev fit, 1.4e-9). ln 2 is split so that k * kLn2High is exact without FMA. Roundings, in
// ulps of a fraction in [0.707, 1): the last sum 0.5, r + r^2 q 0.25, r's own 0.13, q's 0.1.
HWY_INLINE Exponential Exp(VF x) {
  const DF d;
  constexpr float kLn2High = 0x1.62ep-1f;
  constexpr float kLn2Low = 0x1.0bfbe8p-15f;
  constexpr float kLog2E = 0x1.715476p+0f;
  const VF k = hn::Round(hn::Mul(x, hn::Set(d, kLog2E)));
  VF r = hn::NegMulAdd(k, hn::Set(d, kLn2High), x);
  r = hn::NegMulAdd(k, hn::Set(d, kLn2Low), r);
  VF q = hn::Set(d, 0x1.a125f6p-13f);
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.6d444ap-10f));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.1110ep-7f));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.5554e8p-5f));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.555556p-3f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.5f));
  const VF fraction = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), hn::Set(d, 1.0f));
  return {fraction, k};
}

// silu(x) = value * scale * scale. The scale is 1 as long as silu is a normal number and a power of
// two beyond, so that a factor may be applied between the two without losing bits or overflowing.
struct ScaledSilu {
  VF value, scale;
};

// x / (1 + e^-x) with e^-x = p * 2^k, rounded as that expression is in FP32: an error of at most
// e^x's 2 units of 2^-24, and one each for the sum and the quotient. Where k > 64 the 1 is nothing
// and (x / p) * 2^-k is the same number without the overflow. Below -260 silu times any finite FP32
// is 0.
HWY_INLINE ScaledSilu SiluScaled(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  const VF high = hn::Set(d, 260.0f);
  const VF low = hn::Set(d, -87.0f);  // e^-87 is nothing beside 1
  VF power = hn::Neg(x);
  power = hn::IfThenElse(hn::Lt(power, high), power, high);  // NaN too
  power = hn::IfThenElse(hn::Gt(power, low), power, low);
  const Exponential e = Exp(power);
  const auto far = hn::Gt(e.exponent, hn::Set(d, 64.0f));
  const VF near_exponent = hn::Min(e.exponent, hn::Set(d, 64.0f));
  const VF sum = hn::MulAdd(e.fraction, PowerOfTwo(near_exponent), one);
  const VF divisor = hn::IfThenElse(far, e.fraction, sum);
  const VF numerator = hn::IfThenElse(hn::Le(x, hn::Neg(high)), hn::Set(d, -0.0f), x);
  const VF exponent = hn::IfThenElseZero(far, e.exponent);
  const VF beyond = hn::Max(hn::Sub(exponent, hn::Set(d, 123.0f)), hn::Zero(d));
  const VF half = hn::Round(hn::Mul(beyond, hn::Set(d, 0.5f)));
  const VF rest = hn::Sub(hn::Add(half, half), exponent);
  return {hn::Mul(hn::Div(numerator, divisor), PowerOfTwo(rest)), PowerOfTwo(hn::Neg(half))};
}

HWY_INLINE VF SiluOf(VF x) {
  const ScaledSilu silu = SiluScaled(x);
  return hn::Mul(hn::Mul(silu.value, silu.scale), silu.scale);
}

// As eager PyTorch evaluates it: the same, but -0 from where e^-x overflows in FP32 (also for
// -inf).
HWY_INLINE VF SiluEagerOf(VF x) {
  const DF d;
  constexpr float kOverflow = -0x1.62e43p+6f;  // the first x whose e^-x is infinite in FP32
  return hn::IfThenElse(hn::Le(x, hn::Set(d, kOverflow)), hn::Set(d, -0.0f), SiluOf(x));
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
