// The residual addition fused with RMSNorm on the CPU, FP32 inside, vectorised for the machine at
// run time: one pass for the sum of squares of x + r, one that adds again (from cache) and writes
// both outputs. An element is read in full before it is written, so the outputs may be the inputs.
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/base/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/add_rms_norm/add_rms_norm_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/rms_norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

// h = x + r, rounded to T when kRounded.
template <class T, bool kRounded>
struct SumRow {
  const T* x;
  const T* r;

  HWY_INLINE static VF Sum(VF a, VF b) {
    const VF h = hn::Add(a, b);
    return kRounded ? RoundedTo<T>(h) : h;
  }
  HWY_INLINE VF At(int64_t i) const { return Sum(Load(x + i), Load(r + i)); }
  HWY_INLINE VF Tail(int64_t i, int64_t count) const {
    return Sum(LoadTail(x + i, count), LoadTail(r + i, count));
  }
};

// A row of residual_out, in T or in FP32; neither: absent. Chosen at run time, as the branch costs
// less than three copies of every loop.
template <class T>
struct ResidualRow {
  T* same;
  float* wide;

  HWY_INLINE void StoreAt(VF h, int64_t i) const {
    if (same != nullptr) Store(h, same + i);
    if (wide != nullptr) Store(h, wide + i);
  }
  HWY_INLINE void StoreTailAt(VF h, int64_t i, int64_t count) const {
    if (same != nullptr) StoreTail(h, same + i, count);
    if (wide != nullptr) StoreTail(h, wide + i, count);
  }
};

template <class T, class Weight, RmsNormForm kForm, bool kRounded>
void AddRmsNormForms(const AddRmsNormArgs& args, const Rows& residual) {
  const int64_t columns = args.y.cols;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const auto* weight = static_cast<const Weight*>(args.weight);
  const VF offset = hn::Set(DF(), args.params.weight_offset);
  const bool same = residual.data != nullptr && args.residual_out_dtype == args.dtype;
  const bool wide = residual.data != nullptr && !same;
  for (int64_t index = 0; index < args.y.rows; ++index) {
    const SumRow<T, kRounded> row{static_cast<const T*>(args.x.data) + index * args.x.stride,
                                  static_cast<const T*>(args.r.data) + index * args.r.stride};
    T* y = static_cast<T*>(args.y.data) + index * args.y.stride;
    const int64_t at = index * residual.stride;
    const ResidualRow<T> h_out{same ? static_cast<T*>(residual.data) + at : nullptr,
                               wide ? static_cast<float*>(residual.data) + at : nullptr};
    const RmsScale<T, Weight, kForm> scale{InverseRoot(row, columns, args.params.eps), offset};
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) {
      const VF h = row.At(i);
      h_out.StoreAt(h, i);
      Store(scale(h, WeightAt(weight, i)), y + i);
    }
    if (i < columns) {
      const int64_t count = columns - i;
      const VF h = row.Tail(i, count);
      h_out.StoreTailAt(h, i, count);
      StoreTail(scale(h, WeightTail(weight, i, count)), y + i, count);
    }
  }
}

template <class T, class Weight>
void AddRmsNormTyped(const AddRmsNormArgs& args, const Rows& residual) {
  constexpr auto kOnce = RmsNormForm::kOnce;
  constexpr auto kFirst = RmsNormForm::kNormalisedFirst;
  const bool first = args.params.form == kFirst;
  if (args.sum == Rounding::kHf) {
    first ? AddRmsNormForms<T, Weight, kFirst, true>(args, residual)
          : AddRmsNormForms<T, Weight, kOnce, true>(args, residual);
  } else {
    first ? AddRmsNormForms<T, Weight, kFirst, false>(args, residual)
          : AddRmsNormForms<T, Weight, kOnce, false>(args, residual);
  }
}

}  // namespace

// residual: args.residual_out, or no data.
void AddRmsNormRows(const AddRmsNormArgs& args, const Rows& residual) {
  VisitFloat(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.weight == nullptr) {
      AddRmsNormTyped<T, NoWeight>(args, residual);
    } else if (args.weight_dtype == args.dtype) {
      AddRmsNormTyped<T, T>(args, residual);
    } else {
      AddRmsNormTyped<T, float>(args, residual);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(AddRmsNormRows);

absl::Status AddRmsNormHighway(const ExecutionContext& context, const AddRmsNormArgs& args) {
  int64_t row_bytes = 3 * args.y.cols * SizeOf(args.dtype);
  if (args.residual_out) row_bytes += args.y.cols * SizeOf(args.residual_out_dtype);
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    AddRmsNormArgs part = args;
    part.x = RowRange(args.x, args.dtype, begin, end);
    part.r = RowRange(args.r, args.dtype, begin, end);
    part.y = RowRange(args.y, args.dtype, begin, end);
    Rows residual;
    if (args.residual_out) {
      residual = RowRange(*args.residual_out, args.residual_out_dtype, begin, end);
    }
    HWY_DYNAMIC_DISPATCH(AddRmsNormRows)(part, residual);
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
