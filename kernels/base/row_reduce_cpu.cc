// The sum or the maximum of rows on the CPU, FP32 inside, vectorised for the machine at run time.
#include "kernels/base/row_reduce.h"
#include "kernels/base/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/base/row_reduce_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

// A vector's Max may drop a NaN, so that the NaNs are kept apart.
template <class In>
float MaxOrNanOfRow(const In* x, int64_t columns) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF lowest = hn::BitCast(d, hn::Set(DU32(), 0xFF800000u));  // -inf
  VF max = lowest, nan = hn::Zero(d);
  const auto take = [&](VF v) {
    max = hn::Max(max, v);
    nan = hn::IfThenElse(hn::IsNaN(v), v, nan);
  };
  int64_t i = 0;
  for (; i + lanes <= columns; i += lanes) take(Load(x + i));
  if (i < columns) {
    const auto held = hn::FirstN(d, static_cast<size_t>(columns - i));
    take(hn::IfThenElse(held, LoadTail(x + i, columns - i), lowest));
  }
  const VF sum = hn::SumOfLanes(d, nan);  // 0, or NaN
  if (!hn::AllTrue(d, hn::Eq(sum, hn::Zero(d)))) return hn::GetLane(sum);
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

template <class Out, class In>
void RowReduceTyped(const RowReduceArgs& args) {
  const DF d;
  for (int64_t row = 0; row < args.x.rows; ++row) {
    const In* x = static_cast<const In*>(args.x.data) + row * args.x.stride;
    const float result =
        args.op == ReduceOp::kSum ? SumOfRow(x, args.x.cols) : MaxOrNanOfRow(x, args.x.cols);
    StoreTail(hn::Set(d, result), static_cast<Out*>(args.y.data) + row * args.y.stride, 1);
  }
}

}  // namespace

void RowReduceRows(const RowReduceArgs& args) {
  VisitFloats(args.x_dtype, args.y_dtype,
              [&](auto in, auto out) { RowReduceTyped<decltype(out), decltype(in)>(args); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(RowReduceRows);

absl::Status RowReduceHighway(const ExecutionContext& context, const RowReduceArgs& args) {
  const int64_t row_bytes = args.x.cols * SizeOf(args.x_dtype) + SizeOf(args.y_dtype);
  ForRanges(context.parallel_for, args.x.rows, row_bytes, [&](int64_t begin, int64_t end) {
    RowReduceArgs part = args;
    part.x = RowRange(args.x, args.x_dtype, begin, end);
    part.y = RowRange(args.y, args.y_dtype, begin, end);
    HWY_DYNAMIC_DISPATCH(RowReduceRows)(part);
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
