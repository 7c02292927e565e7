// RMSNorm on the CPU, FP32 inside, vectorised for the machine at run time: one pass for the sum of
// squares, one that reads the row again (from cache) and writes it. Weights of 16 bits are turned
// into FP32 once for all rows.
#include "kernels/base/simd.h"
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

template <class Out, class In>
void RmsNormTyped(const RmsNormArgs& args, const float* factor) {
  const int64_t columns = args.y.cols;
  for (int64_t row = 0; row < args.y.rows; ++row) {
    const In* x = static_cast<const In*>(args.x.data) + row * args.x.stride;
    Out* y = static_cast<Out*>(args.y.data) + row * args.y.stride;
    ScaleRow(args.params.form, x, InverseRoot(x, columns, args.params.eps), factor, columns, y);
  }
}

}  // namespace

// factor: weight + offset, or ones.
void RmsNormRows(const RmsNormArgs& args, const float* factor) {
  VisitFloats(args.y_dtype, args.x_dtype,
              [&](auto out, auto in) { RmsNormTyped<decltype(out), decltype(in)>(args, factor); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(RmsNormRows);

absl::Status RmsNormHighway(const ExecutionContext& context, const RmsNormArgs& args) {
  const int64_t row_bytes = args.y.cols * ComputedBytes(2);
  const FloatVector factor(args.weight, args.weight_dtype, args.params.weight_offset, args.y.cols,
                           1.0f);
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    RmsNormArgs part = args;
    part.x = RowRange(args.x, args.x_dtype, begin, end);
    part.y = RowRange(args.y, args.y_dtype, begin, end);
    HWY_DYNAMIC_DISPATCH(RmsNormRows)(part, factor.data());
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
