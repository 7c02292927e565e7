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

// Stands for an absent residual_out.
struct NoResidual {};

template <class Residual>
HWY_INLINE void StoreResidual(VF h, Residual* to) {
  if constexpr (!hwy::IsSame<Residual, NoResidual>()) Store(h, to);
}

template <class Residual>
HWY_INLINE void StoreResidualTail(VF h, Residual* to, int64_t count) {
  if constexpr (!hwy::IsSame<Residual, NoResidual>()) StoreTail(h, to, count);
}

template <class T, class Weight, class Residual, RmsNormForm kForm, bool kRounded>
void AddRmsNormForms(const AddRmsNormArgs& args, Residual* residual, int64_t residual_stride) {
  const int64_t columns = args.y.cols;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const auto* weight = static_cast<const Weight*>(args.weight);
  const VF offset = hn::Set(DF(), args.params.weight_offset);
  for (int64_t index = 0; index < args.y.rows; ++index) {
    const SumRow<T, kRounded> row{static_cast<const T*>(args.x.data) + index * args.x.stride,
                                  static_cast<const T*>(args.r.data) + index * args.r.stride};
    T* y = static_cast<T*>(args.y.data) + index * args.y.stride;
    Residual* h_out = residual + index * residual_stride;
    const RmsScale<T, Weight, kForm> scale{InverseRoot(row, columns, args.params.eps), offset};
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) {
      const VF h = row.At(i);
      StoreResidual(h, h_out + i);
      Store(scale(h, WeightAt(weight, i)), y + i);
    }
    if (i < columns) {
      const int64_t count = columns - i;
      const VF h = row.Tail(i, count);
      StoreResidualTail(h, h_out + i, count);
      StoreTail(scale(h, WeightTail(weight, i, count)), y + i, count);
    }
  }
}

template <class T, class Weight, class Residual>
void AddRmsNormRounded(const AddRmsNormArgs& args, const Rows& residual) {
  constexpr auto kOnce = RmsNormForm::kOnce;
  constexpr auto kFirst = RmsNormForm::kNormalisedFirst;
  const bool first = args.params.form == kFirst;
  auto* to = static_cast<Residual*>(residual.data);
  const int64_t stride = residual.stride;
  if (args.sum == Rounding::kHf) {
    first ? AddRmsNormForms<T, Weight, Residual, kFirst, true>(args, to, stride)
          : AddRmsNormForms<T, Weight, Residual, kOnce, true>(args, to, stride);
  } else {
    first ? AddRmsNormForms<T, Weight, Residual, kFirst, false>(args, to, stride)
          : AddRmsNormForms<T, Weight, Residual, kOnce, false>(args, to, stride);
  }
}

template <class T, class Weight>
void AddRmsNormResidual(const AddRmsNormArgs& args, const Rows& residual) {
  if (residual.data == nullptr) {
    AddRmsNormRounded<T, Weight, NoResidual>(args, residual);
  } else if (args.residual_out_dtype == args.dtype) {
    AddRmsNormRounded<T, Weight, T>(args, residual);
  } else {
    AddRmsNormRounded<T, Weight, float>(args, residual);
  }
}

}  // namespace

// residual: args.residual_out, or no data.
void AddRmsNormRows(const AddRmsNormArgs& args, const Rows& residual) {
  VisitFloat(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.weight == nullptr) {
      AddRmsNormResidual<T, NoWeight>(args, residual);
    } else if (args.weight_dtype == args.dtype) {
      AddRmsNormResidual<T, T>(args, residual);
    } else {
      AddRmsNormResidual<T, float>(args, residual);
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
