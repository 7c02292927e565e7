// RMSNorm on the CPU, FP32 inside, vectorised for the machine at run time: one pass for the sum of
// squares, one that reads the row again (from cache) and writes it.
#include "kernels/base/split.h"
#include "kernels/rms_norm/rms_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm/rms_norm_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/rms_norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

template <class In>
struct PlainRow {
  const In* x;

  HWY_INLINE VF At(int64_t i) const { return Load(x + i); }
  HWY_INLINE VF Tail(int64_t i, int64_t count) const { return LoadTail(x + i, count); }
};

template <class Out, class In, class Weight, RmsNormForm kForm>
void RmsNormForms(const RmsNormArgs& args) {
  const int64_t columns = args.y.cols;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const auto* weight = static_cast<const Weight*>(args.weight);
  const VF offset = hn::Set(DF(), args.params.weight_offset);
  for (int64_t index = 0; index < args.y.rows; ++index) {
    const PlainRow<In> row{static_cast<const In*>(args.x.data) + index * args.x.stride};
    Out* y = static_cast<Out*>(args.y.data) + index * args.y.stride;
    const RmsScale<Out, Weight, kForm> scale{InverseRoot(row, columns, args.params.eps), offset};
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) Store(scale(row.At(i), WeightAt(weight, i)), y + i);
    if (i < columns) {
      const int64_t count = columns - i;
      StoreTail(scale(row.Tail(i, count), WeightTail(weight, i, count)), y + i, count);
    }
  }
}

template <class Out, class In, class Weight>
void RmsNormTyped(const RmsNormArgs& args) {
  if (args.params.form == RmsNormForm::kNormalisedFirst) {
    RmsNormForms<Out, In, Weight, RmsNormForm::kNormalisedFirst>(args);
  } else {
    RmsNormForms<Out, In, Weight, RmsNormForm::kOnce>(args);
  }
}

template <class Out, class In>
void RmsNormWeighted(const RmsNormArgs& args) {
  if (args.weight == nullptr) {
    RmsNormTyped<Out, In, NoWeight>(args);
  } else if (args.weight_dtype == args.y_dtype) {
    RmsNormTyped<Out, In, Out>(args);
  } else {
    RmsNormTyped<Out, In, float>(args);
  }
}

}  // namespace

void RmsNormRows(const RmsNormArgs& args) {
  VisitFloat(args.y_dtype, [&](auto out) {
    using Out = decltype(out);
    if (args.x_dtype == args.y_dtype) {
      RmsNormWeighted<Out, Out>(args);
    } else {
      RmsNormWeighted<Out, float>(args);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(RmsNormRows);

absl::Status RmsNormHighway(const ExecutionContext& context, const RmsNormArgs& args) {
  const int64_t row_bytes = args.y.cols * (SizeOf(args.x_dtype) + SizeOf(args.y_dtype));
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    RmsNormArgs part = args;
    part.x = RowRange(args.x, args.x_dtype, begin, end);
    part.y = RowRange(args.y, args.y_dtype, begin, end);
    HWY_DYNAMIC_DISPATCH(RmsNormRows)(part);
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
