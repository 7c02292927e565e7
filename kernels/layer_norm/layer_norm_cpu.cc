// LayerNorm on the CPU, FP32 inside, vectorised for the machine at run time: a pass for the sum,
// one for the sums of (x - m) and (x - m)^2 with its mean m, one that writes. The sum of (x - m)
// says how far m, which has the rounding of a long sum, is from the mean; m is put right by it and
// the variance too. So the mean is rounded once, and a constant row's is the constant. Weights and
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

struct RowStats {
  float mean, scale;
};

template <class In>
HWY_INLINE RowStats StatsOf(const In* x, int64_t columns, float eps) {
  const DF d;
  const float share = 1.0f / static_cast<float>(columns);
  float sum[1];
  Accumulate(
      columns, [&](Sums<1>& sums, int64_t i) { sums.of[0] = hn::Add(sums.of[0], Load(x + i)); },
      [&](Sums<1>& sums, int64_t i, int64_t left) {
        sums.of[0] = hn::Add(sums.of[0], LoadTail(x + i, left));
      },
      sum);
  const float near_mean = sum[0] * share;
  const VF near = hn::Set(d, near_mean);
  const auto add = [](Sums<2>& sums, VF difference) {
    sums.of[0] = hn::Add(sums.of[0], difference);
    sums.of[1] = hn::MulAdd(difference, difference, sums.of[1]);
  };
  float moments[2];
  Accumulate(
      columns, [&](Sums<2>& sums, int64_t i) { add(sums, hn::Sub(Load(x + i), near)); },
      [&](Sums<2>& sums, int64_t i, int64_t left) {
        // The lanes beyond the row must not add mean^2.
        const auto held = hn::FirstN(d, static_cast<size_t>(left));
        add(sums, hn::IfThenElseZero(held, hn::Sub(LoadTail(x + i, left), near)));
      },
      moments);
  const float correction = moments[0] * share;
  const float variance = moments[1] * share - correction * correction;
  const VF root = hn::Sqrt(hn::Set(d, (variance < 0 ? 0.0f : variance) + eps));
  return {near_mean + correction, hn::GetLane(hn::Div(hn::Set(d, 1.0f), root))};
}

template <class Out, class In>
void LayerNormTyped(const LayerNormArgs& args, const float* weight, const float* bias) {
  const int64_t columns = args.y.cols;
  for (int64_t row = 0; row < args.y.rows; ++row) {
    const In* x = static_cast<const In*>(args.x.data) + row * args.x.stride;
    Out* y = static_cast<Out*>(args.y.data) + row * args.y.stride;
    const RowStats stats = StatsOf(x, columns, args.eps);
    const VF mean = hn::Set(DF(), stats.mean), scale = hn::Set(DF(), stats.scale);
    Map(
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
