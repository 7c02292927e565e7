// RMSNorm of a row, for one Highway target at a time: shared by rms_norm and add_rms_norm.
#include "kernels/base/map-inl.h"

#if defined(FUSEBLOCK_KERNELS_BASE_RMS_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_RMS_NORM_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_RMS_NORM_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_RMS_NORM_INL_H_
#endif

#include "kernels/base/rounding.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

// mean(h^2), where at(i) is a full vector of h from column i and tail(i, count) the last one, with
// zeros beyond the row.
template <class At, class Tail>
HWY_INLINE float MeanSquareOf(int64_t columns, const At& at, const Tail& tail) {
  float sum[1];
  Accumulate(
      columns,
      [&](Sums<1>& sums, int64_t i) {
        const VF v = at(i);
        sums.of[0] = hn::MulAdd(v, v, sums.of[0]);
      },
      [&](Sums<1>& sums, int64_t i, int64_t count) {
        const VF v = tail(i, count);
        sums.of[0] = hn::MulAdd(v, v, sums.of[0]);
      },
      sum);
  return sum[0] / static_cast<float>(columns);
}

template <class In>
HWY_INLINE float MeanSquare(const In* x, int64_t columns) {
  return MeanSquareOf(
      columns, [&](int64_t i) { return Load(x + i); },
      [&](int64_t i, int64_t count) { return LoadTail(x + i, count); });
}

// y = x * inverse * factor, as the form rounds it. factor: weight + offset, or ones.
template <class Out, class In, class Factor>
HWY_INLINE void ScaleRow(RmsNormForm form, const In* x, float inverse, const Factor* factor,
                         int64_t columns, Out* y) {
  const VF scale = hn::Set(DF(), inverse);
  // For FP32 the two forms are one.
  if constexpr (!hwy::IsSame<Out, float>()) {
    if (form == RmsNormForm::kNormalisedFirst) {
      Map(
          columns, [&](VF h, VF w) { return hn::Mul(RoundedTo<Out>(hn::Mul(h, scale)), w); }, y, x,
          factor);
      return;
    }
  }
  Map(
      columns, [&](VF h, VF w) { return hn::Mul(hn::Mul(h, scale), w); }, y, x, factor);
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
