// The residual addition fused with RMSNorm on the CPU, FP32 inside, vectorised for the machine at
// run time: one pass adds into a row of FP32 and sums the squares, one scales that row. Weights of
// 16 bits are turned into FP32 once for all rows. A row is read in full before y is written, and an
// element before residual_out's is, so the outputs may be the inputs.
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/base/simd.h"
#include "kernels/base/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/add_rms_norm/add_rms_norm_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/rms_norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

// h = x + r, rounded to T when `rounded`; also stored as T in `stored` unless that is null. Returns
// 1 / sqrt(mean(h^2) + eps), summed in the order of MeanSquare.
template <class T>
HWY_INLINE float AddRow(const T* x, const T* r, bool rounded, int64_t columns, float eps, float* h,
                        T* stored) {
  const auto sum = [rounded](VF a, VF b) {
    const VF exact = hn::Add(a, b);
    return rounded ? RoundedTo<T>(exact) : exact;
  };
  const float mean = MeanSquareOf(
      columns,
      [&](int64_t i) {
        const VF value = sum(Load(x + i), Load(r + i));
        Store(value, h + i);
        if (stored != nullptr) Store(value, stored + i);
        return value;
      },
      [&](int64_t i, int64_t count) {
        const VF value = sum(LoadTail(x + i, count), LoadTail(r + i, count));
        StoreTail(value, h + i, count);
        if (stored != nullptr) StoreTail(value, stored + i, count);
        return value;
      });
  return RoundedInverseRoot(mean + eps);
}

template <class T>
void AddRmsNormTyped(const AddRmsNormArgs& args, const float* factor, const Rows& residual,
                     float* scratch) {
  const int64_t columns = args.y.cols;
  const bool same = residual.data != nullptr && args.residual_out_dtype == args.dtype;
  const bool wide = residual.data != nullptr && args.residual_out_dtype == DType::kF32;
  for (int64_t row = 0; row < args.y.rows; ++row) {
    const T* x = static_cast<const T*>(args.x.data) + row * args.x.stride;
    const T* r = static_cast<const T*>(args.r.data) + row * args.r.stride;
    T* y = static_cast<T*>(args.y.data) + row * args.y.stride;
    const int64_t at = row * residual.stride;
    float* h = wide ? static_cast<float*>(residual.data) + at : scratch;
    T* stored = same && !wide ? static_cast<T*>(residual.data) + at : nullptr;
    const bool rounded = args.sum == Rounding::kHf;
    const float inverse = AddRow(x, r, rounded, columns, args.params.eps, h, stored);
    ScaleRow(args.params.form, h, inverse, factor, columns, y);
  }
}

}  // namespace

// factor: weight + offset, or ones. residual: args.residual_out, or no data. scratch: a row.
void AddRmsNormRows(const AddRmsNormArgs& args, const float* factor, const Rows& residual,
                    float* scratch) {
  VisitFloat(args.dtype,
             [&](auto type) { AddRmsNormTyped<decltype(type)>(args, factor, residual, scratch); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(AddRmsNormRows);

absl::Status AddRmsNormHighway(const ExecutionContext& context, const AddRmsNormArgs& args) {
  const int64_t row_bytes = args.y.cols * ComputedBytes(args.residual_out ? 4 : 3);
  const FloatVector factor(args.weight, args.weight_dtype, args.params.weight_offset, args.y.cols,
                           1.0f);
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    AddRmsNormArgs part = args;
    part.x = RowRange(args.x, args.dtype, begin, end);
    part.r = RowRange(args.r, args.dtype, begin, end);
    part.y = RowRange(args.y, args.dtype, begin, end);
    Rows residual;
    if (args.residual_out) {
      residual = RowRange(*args.residual_out, args.residual_out_dtype, begin, end);
    }
    const auto scratch = std::make_unique_for_overwrite<float[]>(args.y.cols);
    HWY_DYNAMIC_DISPATCH(AddRmsNormRows)(part, factor.data(), residual, scratch.get());
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
