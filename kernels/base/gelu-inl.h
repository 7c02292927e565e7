// GELU on vectors, for one Highway target at a time: gelu_erf, gelu_tanh and what fuses them.
//
// Both forms are max(x, 0) - |x| S(|x|) with S falling from 1/2 to 0: Phi(-t) or sigmoid(-v(t)).
// The subtraction loses nothing, since |x| S is at most half of a positive x, and for a negative x
// the result is -|x| S itself, whose relative precision is kept down to the smallest subnormal.
#include "kernels/base/exp-inl.h"
#include "kernels/base/gelu.h"

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
  static constexpr float kZero = kGeluErfZero;

  // Phi(-t) = e^(-t^2/2) R(t), R(t) = erfc(t / sqrt(2)) e^(t^2/2) / 2, of which N / D is a minimax
  // approximation on [0, kZero] (6.3e-9, 3e-8 with rounded coefficients). Roundings, in units of
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
  static constexpr float kZero = kGeluTanhZero;

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

// gelu, which is GeluOf(tail, x), times a factor; where 2^exponent of S is no normal number, that
// is applied before it, so that no subnormal gelu is rounded. 0 times it where gelu is 0.
template <class Tail>
HWY_INLINE VF GeluTimes(const Tail& tail, VF x, VF gelu, VF factor) {
  const DF d;
  const VF product = hn::Mul(gelu, factor);
  const auto far = hn::Le(x, hn::Set(d, -Tail::kNear));
  if (HWY_LIKELY(hn::AllFalse(d, far))) return product;
  const auto small = hn::And(far, hn::Gt(x, hn::Set(d, -Tail::kZero)));
  const Exponential lost =
      tail.template Of<false>(hn::IfThenElse(small, hn::Neg(x), hn::Set(d, Tail::kNear)));
  // 2^exponent in two steps, only the second of which rounds; where the first does, too, the second
  // gives 0.
  const VF first = hn::Max(lost.exponent, hn::Set(d, -64.0f));
  const VF scaled = hn::Mul(lost.fraction, hn::Mul(factor, PowerOfTwo(first)));
  return hn::IfThenElse(small, hn::Neg(hn::Mul(scaled, PowerOfTwo(hn::Sub(lost.exponent, first)))),
                        product);
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Sixteen lanes are a table: for t < kGeluTableEnd, which most activations are, Phi(-t) is a
// polynomial in t - i / 4 around each of sixteen i: half the instructions. Minimax, relative, with
// rounded coefficients: of degree 5 within 3.7 units of 2^-24, of degree 4, for a result of 16
// bits, within 124. The evaluation adds 2.
constexpr float kGeluTableEnd = 3.875f;

alignas(64) constexpr float kPhi[6][16] = {
    {0x1p-1f, 0x1.9aecbap-2f, 0x1.3bf144p-2f, 0x1.d022p-3f, 0x1.44ed0cp-3f, 0x1.b0bdd2p-4f,
     0x1.11a46ep-4f, 0x1.482a24p-5f, 0x1.74bcf8p-6f, 0x1.90924ep-7f, 0x1.96f4e6p-8f, 0x1.869044p-9f,
     0x1.61de2p-10f, 0x1.2e86fep-11f, 0x1.e7dbccp-13f, 0x1.72d95ap-14f},
    {-0x1.988454p-2f, -0x1.8bf2bap-2f, -0x1.6883dp-2f, -0x1.345d5ep-2f, -0x1.ef8e58p-3f,
     -0x1.7610bap-3f, -0x1.094086p-3f, -0x1.616454p-4f, -0x1.ba4b44p-5f, -0x1.0402ep-5f,
     -0x1.1f2f06p-6f, -0x1.29fa54p-7f, -0x1.227212p-8f, -0x1.09f38ap-9f, -0x1.c9897p-11f,
     -0x1.71b91cp-12f},
    {0x1.82cfe6p-32f, 0x1.8bf22cp-5f, 0x1.68836p-4f, 0x1.ce8bap-4f, 0x1.ef8e1p-4f, 0x1.d394d2p-4f,
     0x1.8de0ep-4f, 0x1.3537f8p-4f, 0x1.ba4ba6p-5f, 0x1.248384p-5f, 0x1.66fb1p-6f, 0x1.99b858p-7f,
     0x1.b3aaep-8f, 0x1.b02aeep-9f, 0x1.9056b8p-10f, 0x1.5a9b4ap-11f},
    {0x1.1057f2p-4f, 0x1.eeee3ep-5f, 0x1.68828p-5f, 0x1.67c01cp-6f, -0x1.0953ccp-22f,
     -0x1.188c3p-6f, -0x1.ba14b6p-6f, -0x1.e5e7eep-6f, -0x1.ba495ep-6f, -0x1.6017e8p-6f,
     -0x1.f69114p-7f, -0x1.45e9c6p-7f, -0x1.83441ap-8f, -0x1.a7dfbap-9f, -0x1.acf75ap-10f,
     -0x1.927f1ep-11f},
    {-0x1.fc6fb8p-26f, -0x1.8238e8p-7f, -0x1.494bf6p-6f, -0x1.76a7f8p-6f, -0x1.499944p-6f,
     -0x1.bfa80cp-7f, -0x1.8ee05p-8f, 0x1.7c5f54p-12f, 0x1.24ce6p-8f, 0x1.90b1aap-8f, 0x1.841c8p-8f,
     0x1.375fcep-8f, 0x1.b4002p-9f, 0x1.10efa8p-9f, 0x1.35b03ep-10f, 0x1.41221cp-11f},
    {-0x1.45bc76p-7f, -0x1.14240ap-7f, -0x1.29f8fap-8f, 0x1.5fe7eep-13f, 0x1.084d46p-8f,
     0x1.87383cp-8f, 0x1.7ed2dcp-8f, 0x1.18b61p-8f, 0x1.241302p-9f, 0x1.d7e1ccp-12f,
     -0x1.5f05bap-11f, -0x1.25987ep-10f, -0x1.2102fcp-10f, -0x1.c2d47p-11f, -0x1.2cf058p-11f,
     -0x1.633d6cp-12f},
};

alignas(64) constexpr float kRoughPhi[5][16] = {
    {0x1p-1f, 0x1.9aecbap-2f, 0x1.3bf144p-2f, 0x1.d022p-3f, 0x1.44ed0cp-3f, 0x1.b0bdd2p-4f,
     0x1.11a46ep-4f, 0x1.482a26p-5f, 0x1.74bcfap-6f, 0x1.90925p-7f, 0x1.96f4e4p-8f, 0x1.86903cp-9f,
     0x1.61de12p-10f, 0x1.2e86e6p-11f, 0x1.e7db8ap-13f, 0x1.72d908p-14f},
    {-0x1.988442p-2f, -0x1.8bf28ep-2f, -0x1.6883b8p-2f, -0x1.345d6p-2f, -0x1.ef8e82p-3f,
     -0x1.7610f6p-3f, -0x1.0940cp-3f, -0x1.6164aap-4f, -0x1.ba4b9ep-5f, -0x1.0402f2p-5f,
     -0x1.1f2ed2p-6f, -0x1.29f9a6p-7f, -0x1.2270bap-8f, -0x1.09f174p-9f, -0x1.c983e6p-11f,
     -0x1.71b29ep-12f},
    {-0x1.0288cap-16f, 0x1.8bf402p-5f, 0x1.6883d8p-4f, 0x1.ce8b8p-4f, 0x1.ef8d26p-4f,
     0x1.d39378p-4f, 0x1.8ddf78p-4f, 0x1.3536ep-4f, 0x1.ba4a78p-5f, 0x1.248356p-5f, 0x1.66fc28p-6f,
     0x1.99bbe2p-7f, 0x1.b3b222p-8f, 0x1.b036d8p-9f, 0x1.90677ep-10f, 0x1.5ab02cp-11f},
    {0x1.11bf84p-4f, 0x1.ed955p-5f, 0x1.67c864p-5f, 0x1.67cc3cp-6f, 0x1.47d7f2p-14f, -0x1.16a55p-6f,
     -0x1.b8388ep-6f, -0x1.e48b06p-6f, -0x1.b993fp-6f, -0x1.5ff334p-6f, -0x1.f6fd0ap-7f,
     -0x1.469e9ep-7f, -0x1.84a7b6p-8f, -0x1.aa0972p-9f, -0x1.afd90ep-10f, -0x1.95e3eap-11f},
    {-0x1.98d7d2p-9f, -0x1.840dfep-7f, -0x1.49c3eap-6f, -0x1.768352p-6f, -0x1.48aeeap-6f,
     -0x1.bcf0eep-7f, -0x1.893f46p-8f, 0x1.c29888p-12f, 0x1.272b8ap-8f, 0x1.910b1ep-8f,
     0x1.83039ap-8f, 0x1.35981ep-8f, 0x1.b059ecp-9f, 0x1.0df016p-9f, 0x1.317662p-10f,
     0x1.3bde6cp-11f},
};

template <int N>
HWY_INLINE VF GeluErfByTable(const float (&phi_around)[N][16], VF x, VF t) {
  const DF d;
  const VF shift = hn::Set(d, 0x1.8p+23f);  // adding it rounds to a whole number, in the low bits
  const VF shifted = hn::MulAdd(t, hn::Set(d, 4.0f), shift);
  const VF from{_mm512_reduce_ps(t.raw, 0x20)};  // t - i / 4
  // The look-up takes the low four bits.
  const hn::Indices512<float> i{hn::BitCast(DI32(), shifted).raw};
  VF phi = hn::TableLookupLanes(hn::Load(d, phi_around[N - 1]), i);
  for (int j = N - 2; j >= 0; --j) {
    phi = hn::MulAdd(phi, from, hn::TableLookupLanes(hn::Load(d, phi_around[j]), i));
  }
  return hn::NegMulAdd(t, phi, hn::Max(hn::Zero(d), x));
}

// For an output of Out. By a lane's own value, so that its bits do not depend on its neighbours.
template <class Out>
HWY_INLINE VF GeluErfOf(VF x) {
  const DF d;
  const VF t = hn::Abs(x);
  const auto inside = hn::Lt(t, hn::Set(d, kGeluTableEnd));
  VF by_table;
  if constexpr (hwy::IsSame<Out, float>()) {
    by_table = GeluErfByTable(kPhi, x, t);
  } else {
    by_table = GeluErfByTable(kRoughPhi, x, t);
  }
  if (HWY_LIKELY(hn::AllTrue(d, inside))) return by_table;
  return hn::IfThenElse(inside, by_table, GeluOf(GeluErfTail(), x));
}
#else
template <class Out>
HWY_INLINE VF GeluErfOf(VF x) {
  return GeluOf(GeluErfTail(), x);
}
#endif

HWY_INLINE VF GeluTanhOf(VF x) { return GeluOf(GeluTanhTail(), x); }

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
