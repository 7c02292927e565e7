// Loads, stores and loops that the CPU row kernels share, compiled once for each Highway target.
//
// A value is computed by the same vector instructions wherever it lies in a row: a tail that does
// not fill a vector goes through a small buffer, and nothing depends on alignment. So an element's
// bits depend on the target and on the element's inputs alone.
//
// No function here or in a *_cpu.cc's target namespace may call an inline function from outside
// Highway: the linker would keep one copy, perhaps the one compiled for a machine that this one is
// not.
#include <cstdint>
#include <cstring>

#include "kernels/base/half.h"

#if defined(FUSEBLOCK_KERNELS_BASE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_SIMD_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_SIMD_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_SIMD_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DU32 = hn::RebindToUnsigned<DF>;
using DI32 = hn::RebindToSigned<DF>;
using DU16 = hn::Rebind<uint16_t, DF>;

// Whether the target converts FP16 in hardware, rounding to nearest even and keeping subnormals.
// Highway's emulation truncates, so the others are done with integers below.
#undef FUSEBLOCK_NATIVE_FP16
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || \
    HWY_ARCH_ARM_A64
#define FUSEBLOCK_NATIVE_FP16 1
#else
#define FUSEBLOCK_NATIVE_FP16 0
#endif

// The FP32 value of a BF16 or FP16 bit pattern in the low half of each lane.
HWY_INLINE VF FromBits(BFloat16, hn::Vec<DU32> bits) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(bits));
}

HWY_INLINE VF FromBits(Half, hn::Vec<DU32> bits) {
  const DF df;
  const DU32 du;
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFF)));
  // Read as FP32 the exponent is 112 too small; the product is exact, subnormals included.
  const VF value = hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1p112f));
  const auto special = hn::Ge(value, hn::Set(df, 0x1p16f));  // infinity and NaN
  const VF out =
      hn::IfThenElse(special, hn::BitCast(df, hn::Or(magnitude, hn::Set(du, 0x7F800000))), value);
  return hn::BitCast(df, hn::Or(hn::BitCast(du, out), sign));
}

// The value rounded to nearest even in the high half of each lane, with anything below it. Not for
// NaN, which might come out as infinity or zero.
HWY_INLINE hn::Vec<DU32> RoundedToHighHalf(VF value) {
  const DU32 du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
}

// The bit pattern of the value rounded to nearest even, in the low half of each lane.
HWY_INLINE hn::Vec<DU32> ToBits(BFloat16, VF value) {
  const DU32 du;
  const auto high = hn::ShiftRight<16>(hn::BitCast(du, value));
  const auto quiet = hn::Or(high, hn::Set(du, 0x40));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet,
                        hn::ShiftRight<16>(RoundedToHighHalf(value)));
}

HWY_INLINE hn::Vec<DU32> ToBits(Half, VF value) {
  const DF df;
  const DU32 du;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
  const VF absolute = hn::BitCast(df, magnitude);
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  const auto normal = hn::ShiftRight<13>(
      hn::Sub(hn::Add(magnitude, hn::Add(odd, hn::Set(du, 0xFFF))), hn::Set(du, 0x38000000)));
  // Below 2^-14: adding 0.5 aligns units of 2^-24 to FP32's last place and rounds to nearest even.
  const auto tiny =
      hn::Sub(hn::BitCast(du, hn::Add(absolute, hn::Set(df, 0.5f))), hn::Set(du, 0x3F000000));
  const auto nan =
      hn::Or(hn::Set(du, 0x7E00), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FF)));
  auto out =
      hn::IfThenElse(hn::RebindMask(du, hn::Lt(absolute, hn::Set(df, 0x1p-14f))), tiny, normal);
  out = hn::IfThenElse(hn::RebindMask(du, hn::Ge(absolute, hn::Set(df, 65520.0f))),
                       hn::Set(du, 0x7C00), out);
  out = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), nan, out);
  return hn::Or(out, sign);
}

HWY_INLINE VF Load(const float* from) { return hn::LoadU(DF(), from); }

template <class T>
HWY_INLINE VF Load(const T* from) {
#if FUSEBLOCK_NATIVE_FP16
  if constexpr (hwy::IsSame<T, Half>()) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(DF(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
  }
#endif
  return FromBits(
      T(), hn::PromoteTo(DU32(), hn::LoadU(DU16(), reinterpret_cast<const uint16_t*>(from))));
}

HWY_INLINE void Store(VF value, float* to) { hn::StoreU(value, DF(), to); }

template <class T>
HWY_INLINE void Store(VF value, T* to) {
#if FUSEBLOCK_NATIVE_FP16
  if constexpr (hwy::IsSame<T, Half>()) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::StoreU(hn::DemoteTo(d16, value), d16, reinterpret_cast<hwy::float16_t*>(to));
  }
#endif
  hn::StoreU(hn::TruncateTo(DU16(), ToBits(T(), value)), DU16(), reinterpret_cast<uint16_t*>(to));
}

// Whether neither holds a NaN. May be false without one: for infinities of both signs.
HWY_INLINE bool NoNaN(VF a, VF b) { return hn::AllFalse(DF(), hn::IsNaN(hn::Add(a, b))); }

// Two vectors that lie side by side.
template <class T>
HWY_INLINE void StorePair(VF first, VF second, T* to) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hwy::IsSame<T, BFloat16>()) {
    if (HWY_LIKELY(NoNaN(first, second))) {
      const hn::Repartition<uint16_t, DF> du16;
      const auto low = hn::BitCast(du16, RoundedToHighHalf(first));
      const auto high = hn::BitCast(du16, RoundedToHighHalf(second));
      return hn::StoreU(hn::ConcatOdd(du16, high, low), du16, reinterpret_cast<uint16_t*>(to));
    }
  }
#endif
  Store(first, to);
  Store(second, to + hn::Lanes(DF()));
}

// The value as it is after it was stored as T.
template <class T>
HWY_INLINE VF RoundedTo(VF value) {
  if constexpr (hwy::IsSame<T, float>()) {
    return value;
  } else {
#if FUSEBLOCK_NATIVE_FP16
    if constexpr (hwy::IsSame<T, Half>()) {
      const hn::Rebind<hwy::float16_t, DF> d16;
      return hn::PromoteTo(DF(), hn::DemoteTo(d16, value));
    }
#endif
    return FromBits(T(), ToBits(T(), value));
  }
}

// Fewer elements than a vector holds; the lanes beyond `count` are zero.
template <class T>
HWY_INLINE VF LoadTail(const T* from, int64_t count) {
  T buffer[hn::MaxLanes(DF())] = {};
  memcpy(buffer, from, static_cast<size_t>(count) * sizeof(T));
  return Load(buffer);
}

template <class T>
HWY_INLINE void StoreTail(VF value, T* to, int64_t count) {
  T buffer[hn::MaxLanes(DF())];
  Store(value, buffer);
  memcpy(to, buffer, static_cast<size_t>(count) * sizeof(T));
}

template <int kCount>
struct Sums {
  VF of[kCount];

  static HWY_INLINE Sums Zero() {
    Sums sums;
    for (VF& sum : sums.of) sum = hn::Zero(DF());
    return sums;
  }
};

// Adds to the total what step(sums, i) adds for each full vector of [begin, end), at i, and
// tail(sums, i, count) for the rest: in four sets of sums, so that the additions of one need not
// wait for another's. beside(i), after the steps of the four vectors at i, is for other work on the
// same columns; returns where the last such four ended.
template <int kCount, class Step, class TailStep, class Beside>
HWY_INLINE int64_t AddSegment(int64_t begin, int64_t end, const Step& step, const TailStep& tail,
                              const Beside& beside, Sums<kCount>& total) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  auto sums0 = Sums<kCount>::Zero(), sums1 = sums0, sums2 = sums0, sums3 = sums0;
  int64_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    step(sums0, i);
    step(sums1, i + lanes);
    step(sums2, i + 2 * lanes);
    step(sums3, i + 3 * lanes);
    beside(i);
  }
  const int64_t done = i;
  for (; i + lanes <= end; i += lanes) step(sums0, i);
  if (i < end) tail(sums1, i, end - i);
  for (int k = 0; k < kCount; ++k) {
    total.of[k] = hn::Add(
        total.of[k], hn::Add(hn::Add(sums0.of[k], sums1.of[k]), hn::Add(sums2.of[k], sums3.of[k])));
  }
  return done;
}

template <int kCount>
HWY_INLINE void SumLanes(const Sums<kCount>& sums, float (&result)[kCount]) {
  for (int k = 0; k < kCount; ++k) result[k] = hn::GetLane(hn::SumOfLanes(DF(), sums.of[k]));
}

// The columns of a segment, at most: 32 vectors for each of AddSegment's sets, so that no lane's
// chain of additions is long.
HWY_INLINE int64_t SegmentMax() { return 4 * 32 * static_cast<int64_t>(hn::Lanes(DF())); }

// 1 / sqrt(x), both rounded. In one lane: a whole vector keeps the divider busy for four times as
// long, which a short row feels.
HWY_INLINE float RoundedInverseRoot(float x) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Set(d, x))));
}

// The sums of what step and tail add for `columns` elements; the order is a function of `columns`
// alone.
template <int kCount, class Step, class TailStep>
HWY_INLINE void Accumulate(int64_t columns, const Step& step, const TailStep& tail,
                           float (&result)[kCount]) {
  auto total = Sums<kCount>::Zero();
  for (int64_t i = 0; i < columns; i += SegmentMax()) {
    AddSegment(
        i, HWY_MIN(columns, i + SegmentMax()), step, tail, [](int64_t) {}, total);
  }
  SumLanes(total, result);
}

template <class In>
HWY_INLINE float SumOfRow(const In* x, int64_t columns) {
  float sum[1];
  Accumulate(
      columns, [&](Sums<1>& sums, int64_t i) { sums.of[0] = hn::Add(sums.of[0], Load(x + i)); },
      [&](Sums<1>& sums, int64_t i, int64_t count) {
        sums.of[0] = hn::Add(sums.of[0], LoadTail(x + i, count));
      },
      sum);
  return sum[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
