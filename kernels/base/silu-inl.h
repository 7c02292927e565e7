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

// silu(x) = value * scale * scale, where the scale is a power of two that keeps `value` normal for
// very negative x, so that a factor may be applied between the two without losing bits.
struct ScaledSilu {
  VF value, scale;
};

// For x >= 0, x / (1 + t) with t = e^-|x|; for x < 0, x t / (1 + t): neither overflows, and x t is
// kept as a fraction and an exponent down to |x| = 260, below which silu times any finite FP32 is
// 0. Error: t's 1 ulp, 1 + t, x t and the quotient 0.5 ulp each: within 3 ulp of FP32 (a ulp of a
// quotient is up to twice that of its terms).
HWY_INLINE ScaledSilu SiluScaled(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  const VF limit = hn::Set(d, 260.0f);
  const VF absolute = hn::Abs(x);
  const auto near = hn::Lt(absolute, limit);  // not so for NaN
  const auto negative = hn::Lt(x, hn::Zero(d));
  const VF magnitude = hn::IfThenElse(near, absolute, limit);
  const Exponential e = Exp(hn::Neg(magnitude));
  const VF t = hn::Mul(e.fraction, PowerOfTwo(hn::Max(e.exponent, hn::Set(d, -126.0f))));
  // Two powers of two once one would leave the range of normal numbers; before that scale is 1, so
  // that a factor cannot overflow where the result does not.
  const VF beyond = hn::Min(hn::Add(e.exponent, hn::Set(d, 123.0f)), hn::Zero(d));
  const VF half = hn::Round(hn::Mul(beyond, hn::Set(d, 0.5f)));
  const VF rest = hn::Sub(e.exponent, hn::Add(half, half));
  const VF product = hn::Mul(hn::Mul(hn::Neg(magnitude), e.fraction), PowerOfTwo(rest));
  const VF left = hn::IfThenElse(near, product, hn::Set(d, -0.0f));
  const VF numerator = hn::IfThenElse(negative, left, x);
  const VF scale = hn::IfThenElse(negative, PowerOfTwo(half), one);
  return {hn::Div(numerator, hn::Add(one, t)), scale};
}

HWY_INLINE VF SiluOf(VF x) {
  const ScaledSilu silu = SiluScaled(x);
  return hn::Mul(hn::Mul(silu.value, silu.scale), silu.scale);
}

// As eager PyTorch evaluates it: x / (1 + e^-x) in FP32, -0 from where e^-x overflows (also for
// -inf).
HWY_INLINE VF SiluEagerOf(VF x) {
  const DF d;
  constexpr float kOverflow = -0x1.62e43p+6f;  // the first x whose e^-x is infinite in FP32
  const VF high = hn::Set(d, 89.0f);
  const VF low = hn::Set(d, -100.0f);  // e^-100 is nothing beside 1
  VF power = hn::Neg(x);
  power = hn::IfThenElse(hn::Lt(power, high), power, high);  // NaN too
  power = hn::IfThenElse(hn::Gt(power, low), power, low);
  const Exponential e = Exp(power);
  const VF half = hn::Round(hn::Mul(e.exponent, hn::Set(d, 0.5f)));
  const VF scaled =
      hn::Mul(hn::Mul(e.fraction, PowerOfTwo(half)), PowerOfTwo(hn::Sub(e.exponent, half)));
  const VF silu = hn::Div(x, hn::Add(hn::Set(d, 1.0f), scaled));
  return hn::IfThenElse(hn::Le(x, hn::Set(d, kOverflow)), hn::Set(d, -0.0f), silu);
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
