// Masked softmax on the CPU, FP32 inside, vectorised for the machine at run time: x + mask goes
// into a row of FP32, of which softmax-inl.h does the rest.
#include <memory>

#include "kernels/base/split.h"
#include "kernels/softmax_masked/softmax_masked.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax_masked/softmax_masked_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

// h = x + mask, or x without one; returns the largest, as MaxOfRow does.
template <class X, class M>
HWY_INLINE float SumRow(const X* x, const M* mask, int64_t columns, float* h) {
  return MaxOfRow(
      columns,
      [&](int64_t i) {
        VF value = Load(x + i);
        if (mask != nullptr) value = hn::Add(value, Load(mask + i));
        Store(value, h + i);
        return value;
      },
      [&](int64_t i, int64_t count) {
        VF value = LoadTail(x + i, count);
        if (mask != nullptr) value = hn::Add(value, LoadTail(mask + i, count));
        StoreTail(value, h + i, count);
        return value;
      });
}

template <class X, class M>
float SumRowAt(const SoftmaxMaskedArgs& args, const ConstRows& mask, int64_t row, float* h) {
  const M* mask_row =
      mask.data == nullptr ? nullptr : static_cast<const M*>(mask.data) + row * mask.stride;
  return SumRow(static_cast<const X*>(args.x.data) + row * args.x.stride, mask_row, args.y.cols, h);
}

template <class Out>
void SoftmaxMaskedTyped(const SoftmaxMaskedArgs& args, const ConstRows& mask, float* h) {
  const bool x_same = args.x_dtype == args.y_dtype;
  const bool mask_same = args.mask_dtype == args.y_dtype;
  for (int64_t row = 0; row < args.y.rows; ++row) {
    float max;
    if (x_same) {
      max = mask_same ? SumRowAt<Out, Out>(args, mask, row, h)
                      : SumRowAt<Out, float>(args, mask, row, h);
    } else {
      max = mask_same ? SumRowAt<float, Out>(args, mask, row, h)
                      : SumRowAt<float, float>(args, mask, row, h);
    }
    Out* y = static_cast<Out*>(args.y.data) + row * args.y.stride;
    SoftmaxOfRow(h, h, args.y.cols, max, /*empty_is_zero=*/true, h, y);
  }
}

}  // namespace

// mask: args.mask, or no data. h: room for a row.
void SoftmaxMaskedRows(const SoftmaxMaskedArgs& args, const ConstRows& mask, float* h) {
  VisitFloat(args.y_dtype, [&](auto out) { SoftmaxMaskedTyped<decltype(out)>(args, mask, h); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(SoftmaxMaskedRows);

absl::Status SoftmaxMaskedHighway(const ExecutionContext& context, const SoftmaxMaskedArgs& args) {
  const int64_t row_bytes = args.y.cols * ComputedBytes(args.mask ? 3 : 2);
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    SoftmaxMaskedArgs part = args;
    part.x = RowRange(args.x, args.x_dtype, begin, end);
    part.y = RowRange(args.y, args.y_dtype, begin, end);
    ConstRows mask;
    if (args.mask) mask = RowRange(*args.mask, args.mask_dtype, begin, end);
    const auto h = std::make_unique_for_overwrite<float[]>(args.y.cols);
    HWY_DYNAMIC_DISPATCH(SoftmaxMaskedRows)(part, mask, h.get());
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
