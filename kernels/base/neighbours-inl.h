// Pairs of neighbouring elements (2i, 2i + 1) as two vectors, for one Highway target at a time:
// shared by kernels whose operands interleave two sequences.
#include "kernels/base/simd-inl.h"

#if defined(FUSEBLOCK_KERNELS_BASE_NEIGHBOURS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_NEIGHBOURS_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_NEIGHBOURS_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_NEIGHBOURS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

struct Neighbours {
  VF even, odd;
};

// A 16-bit pattern in the low half of each lane, and back, by the hardware where it can.
template <class T>
HWY_INLINE VF FromLowBits(hn::Vec<DU32> bits) {
#if FUSEBLOCK_NATIVE_FP16
  if constexpr (hwy::IsSame<T, Half>()) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(DF(), hn::BitCast(d16, hn::TruncateTo(DU16(), bits)));
  }
#endif
  return FromBits(T(), bits);
}

template <class T>
HWY_INLINE hn::Vec<DU32> ToLowBits(VF value) {
#if FUSEBLOCK_NATIVE_FP16
  if constexpr (hwy::IsSame<T, Half>()) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(DU32(), hn::BitCast(DU16(), hn::DemoteTo(d16, value)));
  }
#endif
  return ToBits(T(), value);
}

// As many pairs as a vector has lanes, from `from` on.
HWY_INLINE Neighbours LoadNeighbours(const float* from) {
  Neighbours pair;
  hn::LoadInterleaved2(DF(), from, pair.even, pair.odd);
  return pair;
}

// A pair of 16-bit elements is one 32-bit lane, the even one in its low half.
template <class T>
HWY_INLINE Neighbours LoadNeighbours(const T* from) {
  const auto both = hn::LoadU(DU32(), reinterpret_cast<const uint32_t*>(from));
  return {FromLowBits<T>(hn::And(both, hn::Set(DU32(), 0xFFFF))),
          FromLowBits<T>(hn::ShiftRight<16>(both))};
}

HWY_INLINE void StoreNeighbours(const Neighbours& pair, float* to) {
  hn::StoreInterleaved2(pair.even, pair.odd, DF(), to);
}

HWY_INLINE Neighbours LoadNeighbours(const BFloat16* from) {
  const auto both = hn::LoadU(DU32(), reinterpret_cast<const uint32_t*>(from));
  return {FromBits(BFloat16(), both),
          hn::BitCast(DF(), hn::And(both, hn::Set(DU32(), 0xFFFF0000)))};
}

// Without a NaN, to nearest even: a high half takes one more where its low half and 0x7FFF, or
// 0x8000 if the high half is odd, overflow.
HWY_INLINE void StoreRounded(const Neighbours& pair, BFloat16* to) {
#if HWY_TARGET == HWY_SCALAR
  const auto both = hn::Or(hn::ShiftRight<16>(RoundedToHighHalf(pair.even)),
                           hn::And(RoundedToHighHalf(pair.odd), hn::Set(DU32(), 0xFFFF0000)));
  hn::StoreU(both, DU32(), reinterpret_cast<uint32_t*>(to));
#else
  const DU32 du32;
  const hn::Repartition<uint16_t, DF> du16;
  const auto even = hn::BitCast(du32, pair.even), odd = hn::BitCast(du32, pair.odd);
  const auto high =
      hn::OddEven(hn::BitCast(du16, odd), hn::BitCast(du16, hn::ShiftRight<16>(even)));
  const auto low = hn::OddEven(hn::BitCast(du16, hn::ShiftLeft<16>(odd)), hn::BitCast(du16, even));
  // The average, which adds one more, keeps the overflow as its highest bit.
  const auto less_one = hn::OrAnd(hn::Set(du16, 0x7FFE), high, hn::Set(du16, 1));
  const auto up = hn::ShiftRight<15>(hn::AverageRound(low, less_one));
  hn::StoreU(hn::Add(high, up), du16, reinterpret_cast<uint16_t*>(to));
#endif
}

template <class T>
HWY_INLINE void StoreNeighbours(const Neighbours& pair, T* to) {
  if constexpr (hwy::IsSame<T, BFloat16>()) {
    if (HWY_LIKELY(NoNaN(pair.even, pair.odd))) return StoreRounded(pair, to);
  }
  const auto both = hn::Or(ToLowBits<T>(pair.even), hn::ShiftLeft<16>(ToLowBits<T>(pair.odd)));
  hn::StoreU(both, DU32(), reinterpret_cast<uint32_t*>(to));
}

// Fewer pairs than a vector has lanes; those beyond `count` are zero.
template <class T>
HWY_INLINE Neighbours LoadNeighboursTail(const T* from, int64_t count) {
  T buffer[2 * hn::MaxLanes(DF())] = {};
  memcpy(buffer, from, static_cast<size_t>(2 * count) * sizeof(T));
  return LoadNeighbours(buffer);
}

template <class T>
HWY_INLINE void StoreNeighboursTail(const Neighbours& pair, T* to, int64_t count) {
  T buffer[2 * hn::MaxLanes(DF())];
  StoreNeighbours(pair, buffer);
  memcpy(to, buffer, static_cast<size_t>(2 * count) * sizeof(T));
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
