// RMSNorm of a row, for one Highway target at a time: shared by rms_norm and add_rms_norm.
#include "kernels/base/simd-inl.h"

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

// The sum of row.At(i)^2 for i < columns. Four accumulators take up to kTerms vectors each before
// they are added to the total, so that no lane's chain of additions is long; the order is a
// function of `columns` alone. A row is read by At(i), a full vector from column i, and Tail(i,
// count).
template <class Row>
HWY_INLINE float SumOfSquares(const Row& row, int64_t columns) {
  constexpr int64_t kTerms = 32;
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  VF total = hn::Zero(d);
  int64_t i = 0;
  while (i < columns) {
    const int64_t end = HWY_MIN(columns, i + 4 * kTerms * lanes);
    VF sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      const VF v0 = row.At(i), v1 = row.At(i + lanes);
      const VF v2 = row.At(i + 2 * lanes), v3 = row.At(i + 3 * lanes);
      sum0 = hn::MulAdd(v0, v0, sum0);
      sum1 = hn::MulAdd(v1, v1, sum1);
      sum2 = hn::MulAdd(v2, v2, sum2);
      sum3 = hn::MulAdd(v3, v3, sum3);
    }
    for (; i + lanes <= end; i += lanes) {
      const VF v = row.At(i);
      sum0 = hn::MulAdd(v, v, sum0);
    }
    if (i < end) {
      const VF v = row.Tail(i, end - i);
      sum1 = hn::MulAdd(v, v, sum1);
      i = end;
    }
    total = hn::Add(total, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
  }
  return hn::GetLane(hn::SumOfLanes(d, total));
}

// 1 / sqrt(mean(row^2) + eps), in every lane.
template <class Row>
HWY_INLINE VF InverseRoot(const Row& row, int64_t columns, float eps) {
  const DF d;
  const VF mean =
      hn::Div(hn::Set(d, SumOfSquares(row, columns)), hn::Set(d, static_cast<float>(columns)));
  return hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Add(mean, hn::Set(d, eps))));
}

// Stands for an absent weight.
struct NoWeight {};

// What follows the mean: y = h * inverse * (weight + offset), as the form rounds it.
template <class Out, class Weight, RmsNormForm kForm>
struct RmsScale {
  VF inverse, offset;

  HWY_INLINE VF operator()(VF h, VF weight) const {
    VF n = hn::Mul(h, inverse);
    if constexpr (kForm == RmsNormForm::kNormalisedFirst) n = RoundedTo<Out>(n);
    if constexpr (hwy::IsSame<Weight, NoWeight>()) {
      return n;
    } else {
      return hn::Mul(n, hn::Add(weight, offset));
    }
  }
};

template <class Weight>
HWY_INLINE VF WeightAt(const Weight* weight, int64_t i) {
  if constexpr (hwy::IsSame<Weight, NoWeight>()) {
    return hn::Zero(DF());
  } else {
    return Load(weight + i);
  }
}

template <class Weight>
HWY_INLINE VF WeightTail(const Weight* weight, int64_t i, int64_t count) {
  if constexpr (hwy::IsSame<Weight, NoWeight>()) {
    return hn::Zero(DF());
  } else {
    return LoadTail(weight + i, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
