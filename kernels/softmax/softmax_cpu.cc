// Softmax on the CPU, FP32 inside, vectorised for the machine at run time (softmax-inl.h).
#include <memory>

#include "kernels/base/split.h"
#include "kernels/softmax/softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax/softmax_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

template <class Out, class In>
void SoftmaxTyped(const UnaryArgs& args, float* scratch) {
  const int64_t columns = args.y.cols;
  for (int64_t row = 0; row < args.y.rows; ++row) {
    const In* x = static_cast<const In*>(args.x.data) + row * args.x.stride;
    Out* y = static_cast<Out*>(args.y.data) + row * args.y.stride;
    const float max = MaxOfRow(
        columns, [&](int64_t i) { return Load(x + i); },
        [&](int64_t i, int64_t count) { return LoadTail(x + i, count); });
    const In* next = FetchesNext(row, args.y.rows, columns) ? x + args.x.stride : nullptr;
    const auto fetch = [next](int64_t i) { FetchNext(next, i); };
    SoftmaxOfRow(x, fetch, columns, max, /*empty_is_zero=*/false, RoomForRow(y, scratch), y);
  }
}

}  // namespace

// scratch: room for a row.
void SoftmaxRows(const UnaryArgs& args, float* scratch) {
  VisitFloats(args.y_dtype, args.x_dtype,
              [&](auto out, auto in) { SoftmaxTyped<decltype(out), decltype(in)>(args, scratch); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(SoftmaxRows);

absl::Status SoftmaxHighway(const ExecutionContext& context, const UnaryArgs& args) {
  const int64_t row_bytes = args.y.cols * ComputedBytes(2);
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    UnaryArgs part = args;
    part.x = RowRange(args.x, args.x_dtype, begin, end);
    part.y = RowRange(args.y, args.y_dtype, begin, end);
    const auto scratch = std::make_unique_for_overwrite<float[]>(args.y.cols);
    HWY_DYNAMIC_DISPATCH(SoftmaxRows)(part, scratch.get());
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
