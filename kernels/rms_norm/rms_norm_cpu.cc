// RMSNorm on the CPU, FP32 inside, vectorised for the machine at run time: one pass for the sum of
// squares, one that reads the row again (from cache) and writes it. Weights of 16 bits are turned
// into FP32 once for all rows, but where all is BF16 and nothing is added to it: even and odd
// elements are then taken apart and put together again within their lanes, weights too.
#include <optional>

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

// Short rows of 16 bits share the vectors in which their roots are taken, and stay in the first
// cache until they are written. In FP32 so few instructions stand between two rows' roots that the
// processor takes several at once by itself.
constexpr int64_t kTogetherMax = 16;
constexpr int64_t kTogetherBytes = 8 << 10;

template <class In>
HWY_INLINE int64_t RowsTogether(int64_t columns) {
  if (hwy::IsSame<In, float>()) return 1;
  const int64_t row_bytes = HWY_MAX(int64_t{1}, columns * static_cast<int64_t>(sizeof(In)));
  return HWY_MAX(int64_t{1}, HWY_MIN(kTogetherMax, kTogetherBytes / row_bytes));
}

// Of each 1 / sqrt(x), both rounded.
HWY_INLINE void RoundedInverseRoots(int64_t count, float* x) {
  const hn::CappedTag<float, kTogetherMax> d;
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::LoadU(d, x + i))), d, x + i);
  }
}

template <class Out, class In, class Factor>
void RmsNormTyped(const RmsNormArgs& args, const Factor* factor) {
  const int64_t rows = args.y.rows, columns = args.y.cols;
  const auto x = [&](int64_t row) {
    return static_cast<const In*>(args.x.data) + row * args.x.stride;
  };
  const int64_t together = RowsTogether<In>(columns);
  float inverse[kTogetherMax] = {};
  for (int64_t row = 0; row < rows; row += together) {
    const int64_t count = HWY_MIN(together, rows - row);
    for (int64_t k = 0; k < count; ++k) {
      inverse[k] = MeanSquare(x(row + k), columns) + args.params.eps;
    }
    if (together == 1) {
      inverse[0] = RoundedInverseRoot(inverse[0]);
    } else {
      RoundedInverseRoots(count, inverse);
    }
    for (int64_t k = 0; k < count; ++k) {
      Out* y = static_cast<Out*>(args.y.data) + (row + k) * args.y.stride;
      ScaleRow(args.params.form, x(row + k), inverse[k], factor, columns, y);
    }
  }
}

}  // namespace

// factor: weight + offset, or ones. Null: x, y and the weight are BF16, the offset is 0.
void RmsNormRows(const RmsNormArgs& args, const float* factor) {
  if (factor == nullptr) {
    return RmsNormTyped<BFloat16, BFloat16>(args, static_cast<const BFloat16*>(args.weight));
  }
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
  const bool bf16 = args.x_dtype == DType::kBF16 && args.y_dtype == DType::kBF16 &&
                    args.weight_dtype == DType::kBF16;
  std::optional<FloatVector> factor;
  if (!bf16 || args.weight == nullptr || args.params.weight_offset != 0) {
    factor.emplace(args.weight, args.weight_dtype, args.params.weight_offset, args.y.cols, 1.0f);
  }
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    RmsNormArgs part = args;
    part.x = RowRange(args.x, args.x_dtype, begin, end);
    part.y = RowRange(args.y, args.y_dtype, begin, end);
    HWY_DYNAMIC_DISPATCH(RmsNormRows)(part, factor ? factor->data() : nullptr);
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
