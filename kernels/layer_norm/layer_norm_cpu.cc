// LayerNorm on the CPU, FP32 inside, vectorised for the machine at run time: a pass for the sums of
// (x - c) and (x - c)^2 about a value c near the mean, one that writes. The first sum says how far
// c is from the mean; c is put right by it and the variance too. So the mean is rounded once, and a
// constant row's is the constant. c is the mean of what the row begins with; a row in which that
// is more than a quarter of a deviation from the mean is summed again, about the mean. Weights and
// biases of 16 bits are turned into FP32 once for all rows.
#include "kernels/base/simd.h"
#include "kernels/base/split.h"
#include "kernels/layer_norm/layer_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layer_norm/layer_norm_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

// What the sums of x - about and (x - about)^2 say: the mean less `about`, and the variance.
struct Moments {
  float correction, variance;
};

template <class In>
HWY_INLINE Moments MomentsAbout(float about, const In* x, int64_t columns) {
  const DF d;
  const VF near = hn::Set(d, about);
  const auto add = [](Sums<2>& sums, VF difference) {
    sums.of[0] = hn::Add(sums.of[0], difference);
    sums.of[1] = hn::MulAdd(difference, difference, sums.of[1]);
  };
  float sum[2];
  Accumulate(
      columns, [&](Sums<2>& sums, int64_t i) { add(sums, hn::Sub(Load(x + i), near)); },
      [&](Sums<2>& sums, int64_t i, int64_t left) {
        // The lanes beyond the row must not add about^2.
        const auto held = hn::FirstN(d, static_cast<size_t>(left));
        add(sums, hn::IfThenElseZero(held, hn::Sub(LoadTail(x + i, left), near)));
      },
      sum);
  const float share = 1.0f / static_cast<float>(columns);
  const float correction = sum[0] * share;
  const float variance = sum[1] * share - correction * correction;
  return {correction, variance < 0 ? 0.0f : variance};
}

// The mean of what the row begins with.
template <class In>
HWY_INLINE float FirstMean(const In* x, int64_t columns) {
  const int64_t count = HWY_MIN(columns, int64_t{64});
  return SumOfRow(x, count) / static_cast<float>(count);
}

struct RowStats {
  float mean, scale;
};

template <class In>
HWY_INLINE RowStats StatsOf(const In* x, int64_t columns, float eps) {
  const DF d;
  float about = FirstMean(x, columns);
  Moments moments = MomentsAbout(about, x, columns);
  // Within a quarter of a deviation the sums lose no more than about the mean. A NaN stays one.
  if (!(16 * moments.correction * moments.correction <= moments.variance)) {
    about += moments.correction;
    moments = MomentsAbout(about, x, columns);
  }
  const VF root = hn::Sqrt(hn::Set(d, moments.variance + eps));
  return {about + moments.correction, hn::GetLane(hn::Div(hn::Set(d, 1.0f), root))};
}

template <class Out, class In>
void LayerNormTyped(const LayerNormArgs& args, const float* weight, const float* bias) {
  const int64_t columns = args.y.cols;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  for (int64_t row = 0; row < args.y.rows; ++row) {
    const In* x = static_cast<const In*>(args.x.data) + row * args.x.stride;
    Out* y = static_cast<Out*>(args.y.data) + row * args.y.stride;
    // Asked for while this row is computed, when the memory would be idle.
    const In* next = row + 1 < args.y.rows ? x + args.x.stride : x;
    const RowStats stats = StatsOf(x, columns, args.eps);
    const VF mean = hn::Set(DF(), stats.mean), scale = hn::Set(DF(), stats.scale);
    MapFetching(
        [&](int64_t i) {
          FetchLine(next + i);
          FetchLine(next + i + lanes);
        },
        columns,
        [&](VF value, VF w, VF b) {
          return hn::MulAdd(hn::Mul(hn::Sub(value, mean), scale), w, b);
        },
        y, x, weight, bias);
  }
}

}  // namespace

// weight, bias: in FP32, or ones and zeros.
void LayerNormRows(const LayerNormArgs& args, const float* weight, const float* bias) {
  VisitFloat(args.y_dtype, [&](auto out) {
    using Out = decltype(out);
    if (args.x_dtype == args.y_dtype) {
      LayerNormTyped<Out, Out>(args, weight, bias);
    } else {
      LayerNormTyped<Out, float>(args, weight, bias);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(LayerNormRows);

absl::Status LayerNormHighway(const ExecutionContext& context, const LayerNormArgs& args) {
  const int64_t row_bytes = args.y.cols * ComputedBytes(2);
  const FloatVector weight(args.weight, args.weight_dtype, 0, args.y.cols, 1.0f);
  const FloatVector bias(args.bias, args.weight_dtype, 0, args.y.cols, 0.0f);
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    LayerNormArgs part = args;
    part.x = RowRange(args.x, args.x_dtype, begin, end);
    part.y = RowRange(args.y, args.y_dtype, begin, end);
    HWY_DYNAMIC_DISPATCH(LayerNormRows)(part, weight.data(), bias.data());
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
