// SiLU on vectors, for one Highway target at a time: shared by silu and swiglu.
#include "kernels/base/exp-inl.h"

#if defined(FUSEBLOCK_KERNELS_BASE_SILU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_SILU_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_SILU_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_SILU_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

// x / (1 + e^-x), rounded as that expression is in FP32: an error of at most e^x's 2 units of
// 2^-24, and one each for the sum and the quotient. For x > kNear, where e^-x is in range.
constexpr float kNear = -88.0f;

HWY_INLINE VF SiluNear(VF x) {
  const DF d;
  // e^-87 is nothing beside 1.
  const Exponential e = Exp(hn::Max(hn::Neg(x), hn::Set(d, -87.0f)));
  return hn::Div(x, hn::MulAdd(e.fraction, e.power_of_two, hn::Set(d, 1.0f)));
}

// The same for a result of 16 bits, with e^-x = 2^k 2^f. In units of 2^-24 of the result: 2^f 4,
// what the rounding of log2 e took |x| / 4, the sum and the quotient 1 each. Without FMA f would
// have the rounding of a product of up to 127.
HWY_INLINE VF RoughSiluNear(VF x) {
#if HWY_NATIVE_FMA
  const DF d;
  const VF log2_e = hn::Set(d, 0x1.715476p+0f);
  const VF bounded = hn::Min(x, hn::Set(d, 87.0f));
  const VF shift = hn::Set(d, 0x1.8p+23f + 127);  // as in ReduceExponent
  const VF shifted = hn::NegMulAdd(bounded, log2_e, shift);
  const VF f = hn::NegMulSub(bounded, log2_e, hn::Sub(shifted, shift));
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(DU32(), shifted)));
  return hn::Div(x, hn::MulAdd(RoughExp2NearZero(f), power, hn::Set(d, 1.0f)));
#else
  return SiluNear(x);
#endif
}

HWY_INLINE hn::Mask<DF> IsNear(VF x) { return hn::Gt(x, hn::Set(DF(), kNear)); }

// silu(x) = value * scale * scale for any x. The scale is 1 as long as silu is a normal number and
// a power of two beyond, so that a factor may be applied between the two without losing bits or
// overflowing.
struct ScaledSilu {
  VF value, scale;
};

// The same expression with e^-x = p * 2^k. Where k > 64 the 1 is nothing and (x / p) * 2^-k is the
// same number, to the bit, without the overflow. Below -260 silu times any finite FP32 is 0.
HWY_INLINE ScaledSilu SiluScaled(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  const VF high = hn::Set(d, 260.0f);
  const VF low = hn::Set(d, -87.0f);
  VF power = hn::Neg(x);
  power = hn::IfThenElse(hn::Lt(power, high), power, high);  // NaN too
  power = hn::IfThenElse(hn::Gt(power, low), power, low);
  const Exponential e = Exp(power);
  const auto far = hn::Gt(e.exponent, hn::Set(d, 64.0f));
  const VF near_power = hn::IfThenElse(far, one, e.power_of_two);
  const VF divisor = hn::IfThenElse(far, e.fraction, hn::MulAdd(e.fraction, near_power, one));
  const VF numerator = hn::IfThenElse(hn::Le(x, hn::Neg(high)), hn::Set(d, -0.0f), x);
  const VF exponent = hn::IfThenElseZero(far, e.exponent);
  const VF beyond = hn::Max(hn::Sub(exponent, hn::Set(d, 123.0f)), hn::Zero(d));
  const VF half = hn::Round(hn::Mul(beyond, hn::Set(d, 0.5f)));
  const VF rest = hn::Sub(hn::Add(half, half), exponent);
  return {hn::Mul(hn::Div(numerator, divisor), PowerOfTwo(rest)), PowerOfTwo(hn::Neg(half))};
}

// silu(x) * factor for an output of Out, rounded as if silu had FP32's precision at any magnitude.
// Each lane is computed by its own value, so that its bits do not depend on its neighbours.
template <class Out>
HWY_INLINE VF SiluTimes(VF x, VF factor) {
  const auto near = IsNear(x);
  VF near_value;
  if constexpr (hwy::IsSame<Out, float>()) {
    near_value = SiluNear(x);
  } else {
    near_value = RoughSiluNear(x);
  }
  near_value = hn::Mul(near_value, factor);
  if (HWY_LIKELY(hn::AllTrue(DF(), near))) return near_value;
  const ScaledSilu silu = SiluScaled(x);
  const VF far_value = hn::Mul(hn::Mul(hn::Mul(silu.value, factor), silu.scale), silu.scale);
  return hn::IfThenElse(near, near_value, far_value);
}

template <class Out>
HWY_INLINE VF SiluOf(VF x) {
  return SiluTimes<Out>(x, hn::Set(DF(), 1.0f));
}

// As eager PyTorch evaluates it: the same, but -0 from where e^-x overflows in FP32 (also for
// -inf).
HWY_INLINE VF SiluEagerOf(VF x) {
  const DF d;
  constexpr float kOverflow = -0x1.62e43p+6f;  // the first x whose e^-x is infinite in FP32
  return hn::IfThenElse(hn::Le(x, hn::Set(d, kOverflow)), hn::Set(d, -0.0f), SiluOf<float>(x));
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
