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

template <class Out, class X, class M>
void SoftmaxMaskedTyped(const SoftmaxMaskedArgs& args, const ConstRows& mask, float* scratch) {
  const int64_t columns = args.y.cols;
  const auto x = [&](int64_t row) {
    return static_cast<const X*>(args.x.data) + row * args.x.stride;
  };
  const auto mask_of = [&](int64_t row) {
    return mask.data == nullptr ? nullptr : static_cast<const M*>(mask.data) + row * mask.stride;
  };
  for (int64_t row = 0; row < args.y.rows; ++row) {
    Out* y = static_cast<Out*>(args.y.data) + row * args.y.stride;
    // In y itself its lines come while the sums are stored, which then wait for nothing else, for x
    // and the mask have come during the row before.
    float* h = RoomForRow(y, scratch);
    const float max = SumRow(x(row), mask_of(row), columns, h);
    const bool fetches = FetchesNext(row, args.y.rows, columns);
    const X* next_x = fetches ? x(row + 1) : nullptr;
    const M* next_mask = fetches ? mask_of(row + 1) : nullptr;
    const auto fetch = [next_x, next_mask](int64_t i) {
      FetchNext(next_x, i);
      FetchNext(next_mask, i);
    };
    SoftmaxOfRow(h, fetch, columns, max, /*empty_is_zero=*/true, h, y);
  }
}

}  // namespace

// mask: args.mask, or no data. scratch: room for a row.
void SoftmaxMaskedRows(const SoftmaxMaskedArgs& args, const ConstRows& mask, float* scratch) {
  VisitFloats(args.y_dtype, args.x_dtype, [&](auto out, auto in) {
    using Out = decltype(out);
    using X = decltype(in);
    if (args.mask_dtype == args.y_dtype) {
      SoftmaxMaskedTyped<Out, X, Out>(args, mask, scratch);
    } else {
      SoftmaxMaskedTyped<Out, X, float>(args, mask, scratch);
    }
  });
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
    const auto scratch = std::make_unique_for_overwrite<float[]>(args.y.cols);
    HWY_DYNAMIC_DISPATCH(SoftmaxMaskedRows)(part, mask, scratch.get());
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
