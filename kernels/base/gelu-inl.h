// GELU on vectors, for one Highway target at a time: gelu_erf, gelu_tanh and what fuses them.
//
// Both forms are max(x, 0) - |x| S(|x|) with S falling from 1/2 to 0: Phi(-t) or sigmoid(-v(t)).
// The subtraction loses nothing, since |x| S is at most half of a positive x, and for a negative x
// the result is -|x| S itself, whose relative precision is kept down to the smallest subnormal.
#include "kernels/base/exp-inl.h"

#if defined(FUSEBLOCK_KERNELS_BASE_GELU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_GELU_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_GELU_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_GELU_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

// c[0] + c[1] x + ...
template <int N>
HWY_INLINE VF Polynomial(const float (&c)[N], VF x) {
  const DF d;
  VF sum = hn::Set(d, c[N - 1]);
  for (int i = N - 2; i >= 0; --i) sum = hn::MulAdd(sum, x, hn::Set(d, c[i]));
  return sum;
}

// A form of GELU: where 2^exponent of S is a normal number (t < kNear) and from where on t S is 0.
// Of(t): t S(t) / 2^exponent, with the exponent; `near` promises t < kNear.
struct GeluErfTail {
  static constexpr float kNear = 13.0f;
  static constexpr float kZero = 15.0f;

  // Phi(-t) = e^(-t^2/2) R(t), R(t) = erfc(t / sqrt(2)) e^(t^2/2) / 2, of which N / D is a minimax
  // approximation on [0, 15] (6.3e-9, 3e-8 with rounded coefficients). Roundings, in units of
  // 2^-24 of the result: e^.. 2, N, D and the approximation 2 each, products and quotient 4.
  template <bool near>
  HWY_INLINE Exponential Of(VF t) const {
    const DF d;
    constexpr float kN[] = {0x1p-1f, 0x1.c1d36p-2f, 0x1.78c49ap-3f, 0x1.4ee5a6p-5f, 0x1.102f48p-8f};
    constexpr float kD[] = {1.0f,          0x1.ad2be2p+0f, 0x1.349eb4p+0f,
                            0x1.e2b8bp-2f, 0x1.a3c19cp-4f, 0x1.552116p-7f};
    const VF half = hn::Set(d, -0.5f);
    const VF square = hn::Mul(t, t);
    const Exponential e =
        ExpOfSum(hn::Mul(square, half), hn::Mul(ProductError(t, t, square), half));
    const VF numerator = hn::Mul(hn::Mul(t, e.fraction), Polynomial(kN, t));
    return {hn::Div(numerator, Polynomial(kD, t)), e.exponent, e.power_of_two};
  }
};

struct GeluTanhTail {
  static constexpr float kNear = 10.0f;
  static constexpr float kZero = 11.0f;

  // sigmoid(-v) = e^-v / (1 + e^-v), v = 2 sqrt(2 / pi) (t + 0.044715 t^3), which is up to 110: it
  // is computed as a sum of two, exact to 2^-40. Roundings, in units of 2^-24: e^-v 2, the sum 1,
  // product and quotient 2.
  template <bool near>
  HWY_INLINE Exponential Of(VF t) const {
    const DF d;
    const VF a = hn::Set(d, 0x1.988454p+0f), a_low = hn::Set(d, -0x1.857936p-25f);
    const VF b = hn::Set(d, 0x1.2444f2p-4f), b_low = hn::Set(d, 0x1.49b16ap-29f);
    const VF square = hn::Mul(t, t);
    const VF cubic = hn::Mul(b, square);
    VF low = hn::MulAdd(b_low, square, ProductError(b, square, cubic));
    low = hn::MulAdd(b, ProductError(t, t, square), low);
    const VF slope = hn::Add(a, cubic);
    const VF cubic_part = hn::Sub(slope, a);
    const VF a_part = hn::Sub(slope, cubic_part);
    low = hn::Add(low, hn::Add(hn::Sub(a, a_part), hn::Sub(cubic, cubic_part)));
    low = hn::Add(low, a_low);
    const VF v = hn::Mul(t, slope);
    const VF v_low = hn::MulAdd(t, low, ProductError(t, slope, v));
    const Exponential e = ExpOfSum(hn::Neg(v), hn::Neg(v_low));
    // Where 2^exponent is no normal number, e^-v is nothing beside 1.
    const VF power =
        near ? e.power_of_two
             : hn::IfThenElseZero(hn::Gt(e.exponent, hn::Set(d, -64.0f)), e.power_of_two);
    const VF divisor = hn::MulAdd(e.fraction, power, hn::Set(d, 1.0f));
    return {hn::Div(hn::Mul(t, e.fraction), divisor), e.exponent, e.power_of_two};
  }
};

template <class Tail>
HWY_INLINE VF GeluOf(const Tail& tail, VF x) {
  const DF d;
  const VF magnitude = hn::Abs(x);
  if (HWY_LIKELY(hn::AllTrue(d, hn::Lt(magnitude, hn::Set(d, Tail::kNear))))) {
    const Exponential lost = tail.template Of<true>(magnitude);
    return hn::NegMulAdd(lost.fraction, lost.power_of_two, hn::Max(hn::Zero(d), x));
  }
  const VF zero_from = hn::Set(d, Tail::kZero);
  const VF t = hn::IfThenElse(hn::Lt(magnitude, zero_from), magnitude, zero_from);  // NaN too
  const Exponential lost = tail.template Of<false>(t);
  // 2^exponent in two steps, only the second of which rounds.
  const VF first = hn::Max(lost.exponent, hn::Set(d, -100.0f));
  const VF small =
      hn::Mul(hn::Mul(lost.fraction, PowerOfTwo(first)), PowerOfTwo(hn::Sub(lost.exponent, first)));
  const VF positive = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);  // NaN too
  return hn::CopySign(hn::Sub(positive, small), x);
}

HWY_INLINE VF GeluErfOf(VF x) { return GeluOf(GeluErfTail(), x); }
HWY_INLINE VF GeluTanhOf(VF x) { return GeluOf(GeluTanhTail(), x); }

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
