// The causal softmax on the CPU: each row as softmax of the keys that it keeps (softmax-inl.h), and
// zeros.
#include <cstring>
#include <memory>

#include "kernels/base/causal.h"
#include "kernels/base/split.h"
#include "kernels/causal_softmax/causal_softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/causal_softmax/causal_softmax_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

template <class Out, class In>
void KeptSoftmax(const In* x, int64_t kept, float* powers, Out* y) {
  const float max = MaxOfRow(
      kept, [&](int64_t i) { return Load(x + i); },
      [&](int64_t i, int64_t count) { return LoadTail(x + i, count); });
  SoftmaxOfRow(
      x, [](int64_t) {}, kept, max, /*empty_is_zero=*/true, powers, y);
}

template <class Out, class In>
void CausalTyped(const CausalSoftmaxArgs& row, int64_t kept, float* scratch) {
  const In* x = static_cast<const In*>(row.x.data);
  Out* y = static_cast<Out*>(row.y.data);
  if (row.scale != 1.0f) {
    const VF scale = hn::Set(DF(), row.scale);
    Map(
        kept, [&](VF value) { return hn::Mul(value, scale); }, scratch, x);
    KeptSoftmax(scratch, kept, scratch, y);
  } else {
    KeptSoftmax(x, kept, RoomForRow(y, scratch), y);
  }
  memset(static_cast<void*>(y + kept), 0, static_cast<size_t>(row.y.cols - kept) * sizeof(Out));
}

}  // namespace

// row: one row. scratch: room for it.
void CausalSoftmaxRow(const CausalSoftmaxArgs& row, int64_t kept, float* scratch) {
  VisitFloats(row.y_dtype, row.x_dtype, [&](auto out, auto in) {
    CausalTyped<decltype(out), decltype(in)>(row, kept, scratch);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(CausalSoftmaxRow);

absl::Status CausalSoftmaxHighway(const ExecutionContext& context, const CausalSoftmaxArgs& args) {
  const int64_t row_bytes = args.y.cols * ComputedBytes(2);
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    const auto scratch = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(args.y.cols));
    for (int64_t turn = begin; turn < end; ++turn) {
      const int64_t query = CausalQueryInTurn(turn % args.queries, args.queries);
      const int64_t index = turn / args.queries * args.queries + query;
      CausalSoftmaxArgs row = args;
      row.x = RowRange(args.x, args.x_dtype, index, index + 1);
      row.y = RowRange(args.y, args.y_dtype, index, index + 1);
      HWY_DYNAMIC_DISPATCH(CausalSoftmaxRow)
      (row, CausalKept(query, args.queries, args.y.cols), scratch.get());
    }
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
