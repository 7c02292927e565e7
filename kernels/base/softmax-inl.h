// Softmax of a row on vectors, for one Highway target at a time: shared by softmax, softmax_masked
// and causal_softmax.
//
// Three passes: the maximum; e^(x - max), kept in FP32, and its sum; the quotients. The powers are
// kept times 2^64, so that none of them is subnormal, and neither is the sum's reciprocal: what is
// below FP32's normal range is rounded once, in the last product.
#include "kernels/base/exp-inl.h"
#include "kernels/base/map-inl.h"

#if defined(FUSEBLOCK_KERNELS_BASE_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_SOFTMAX_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_SOFTMAX_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_SOFTMAX_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

// Below every finite value and every power's logarithm that counts; -inf as a bit pattern.
HWY_INLINE VF NegativeInfinity() { return hn::BitCast(DF(), hn::Set(DU32(), 0xFF800000u)); }

// What rounding took from the difference a - b, exactly where nothing overflows.
HWY_INLINE VF DifferenceError(VF a, VF b, VF difference) {
  const VF minus_b = hn::Sub(difference, a);
  return hn::Sub(hn::Sub(a, hn::Sub(difference, minus_b)), hn::Add(b, minus_b));
}

// e^(x - max) * 2^64 for x <= max, within 1 ulp and what the difference's rounding makes of it.
// From -130 down e^-130 * 2^64, which is nothing beside any sum and a quotient of 0. A NaN stays
// one.
HWY_INLINE VF ExpTimesTwoTo64(VF x, VF max) {
  const DF d;
  const DU32 du;
  const VF low = hn::Set(d, -130.0f);
  const VF below = hn::Sub(x, max);
  const auto far = hn::Lt(below, low);
  const ReducedExponent reduced = ReduceExponent(hn::IfThenElse(far, low, below));
  VF r = reduced.r;
#if !HWY_NATIVE_FMA
  // Without FMA the rest has more roundings, which the difference's makes up for.
  r = hn::Add(r, hn::IfThenElse(far, hn::Zero(d), DifferenceError(x, max, below)));
#endif
  const auto power = hn::Add(hn::BitCast(du, reduced.power_of_two), hn::Set(du, 64u << 23));
  return hn::Mul(ExpNearZero(r), hn::BitCast(d, power));
}

// The same for a result of 16 bits, from t = (x - max) log2 e = k + f. In units of 2^-24: 2^f 4,
// the roundings of the difference and of t |x - max| each, the constant's half as many.
HWY_INLINE VF RoughExpTimesTwoTo64(VF x, VF max) {
  const DF d;
  const VF low = hn::Set(d, -187.0f);
  VF t = hn::Mul(hn::Sub(x, max), hn::Set(d, 0x1.715476p+0f));
  t = hn::IfThenElse(hn::Lt(t, low), low, t);
  // As in ReduceExponent, with the 64 in the biased exponent.
  const VF shift = hn::Set(d, 0x1.8p+23f + 127 + 64);
  const VF shifted = hn::Add(t, shift);
  const VF f = hn::Sub(t, hn::Sub(shifted, shift));
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(DU32(), shifted)));
  return hn::Mul(RoughExp2NearZero(f), power);
}

// The largest of the row; anything when it holds a NaN, which the sum then is. at(i) is a full
// vector from column i, tail(i, count) the last one, whose lanes beyond the row do not matter.
template <class At, class Tail>
HWY_INLINE float MaxOfRow(int64_t columns, const At& at, const Tail& tail) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  VF max0 = NegativeInfinity(), max1 = max0, max2 = max0, max3 = max0;
  int64_t i = 0;
  for (; i + 4 * lanes <= columns; i += 4 * lanes) {
    max0 = hn::Max(max0, at(i));
    max1 = hn::Max(max1, at(i + lanes));
    max2 = hn::Max(max2, at(i + 2 * lanes));
    max3 = hn::Max(max3, at(i + 3 * lanes));
  }
  for (; i + lanes <= columns; i += lanes) max0 = hn::Max(max0, at(i));
  if (i < columns) {
    const auto held = hn::FirstN(d, static_cast<size_t>(columns - i));
    max1 = hn::Max(max1, hn::IfThenElse(held, tail(i, columns - i), NegativeInfinity()));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(max0, max1), hn::Max(max2, max3))));
}

// Room for a row in FP32: y itself, if it is that, or the scratch.
template <class Out>
HWY_INLINE float* RoomForRow(Out* y, float* scratch) {
  if constexpr (hwy::IsSame<Out, float>()) {
    return y;
  } else {
    return scratch;
  }
}

// What the next row is computed from is asked for while this row's powers are computed, when the
// memory would be idle. Of rows with more columns it would be gone from the second cache by its
// turn.
HWY_INLINE bool FetchesNext(int64_t row, int64_t rows, int64_t columns) {
  constexpr int64_t kFetchedColumns = 64 << 10;
  return row + 1 < rows && columns <= kFetchedColumns;
}

// next: nullptr where there is nothing to ask for.
template <class T>
HWY_INLINE void FetchNext(const T* next, int64_t i) {
  if (next != nullptr) FetchLine(next + i);
}

// powers = e^(x - max) * 2^64; returns their sum. powers may be x. fetch(i): asks for what the next
// row has at i.
template <bool kRough, class In, class Fetch>
HWY_INLINE float PowersOfRow(const In* x, const Fetch& fetch, int64_t columns, float max,
                             float* powers) {
  const DF d;
  const VF above = hn::Set(d, max);
  const auto power_of = [&](VF value) {
    return kRough ? RoughExpTimesTwoTo64(value, above) : ExpTimesTwoTo64(value, above);
  };
  float sum[1];
  Accumulate(
      columns,
      [&](Sums<1>& sums, int64_t i) {
        fetch(i);
        const VF power = power_of(Load(x + i));
        Store(power, powers + i);
        sums.of[0] = hn::Add(sums.of[0], power);
      },
      [&](Sums<1>& sums, int64_t i, int64_t count) {
        const VF power = power_of(LoadTail(x + i, count));
        StoreTail(power, powers + i, count);
        const auto held = hn::FirstN(d, static_cast<size_t>(count));
        sums.of[0] = hn::Add(sums.of[0], hn::IfThenElseZero(held, power));
      },
      sum);
  return sum[0];
}

// y = softmax(x), given the largest x. fetch: as above. powers: room for a row; may be x, or y.
template <class Out, class In, class Fetch>
HWY_INLINE void SoftmaxOfRow(const In* x, const Fetch& fetch, int64_t columns, float max,
                             bool empty_is_zero, float* powers, Out* y) {
  const DF d;
  // -inf less itself is NaN: what an empty row's result is, unless it is to be zero.
  const bool empty = empty_is_zero && max == hn::GetLane(NegativeInfinity());
  constexpr bool kRough = !hwy::IsSame<Out, float>();
  const float sum = PowersOfRow<kRough>(x, fetch, columns, empty ? 0.0f : max, powers);
  // Not so if a NaN was what the maximum left out.
  if (empty && sum == sum) {
    Map(
        columns, [&](VF) { return hn::Zero(d); }, y, powers);
    return;
  }
  const VF factor = hn::Set(d, 1.0f / sum);
  Map</*kAhead=*/0>(
      columns, [&](VF power) { return hn::Mul(power, factor); }, y, powers);
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
