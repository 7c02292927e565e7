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

// Rows are written together, a segment of columns at a time, so that all but the first find the
// segment's weights and biases in the first cache: those of a long row do not stay there. It holds
// 1,024 of both beside as many columns of the rows that are written and summed.
constexpr int64_t kTogetherMax = 4;
constexpr int64_t kSegment = 1024;

// How many: what was summed stays in the second cache until it is written. Rows of which it does
// not even hold one are read from memory twice, however many they are.
HWY_INLINE int64_t RowsTogether(int64_t row_bytes) {
  constexpr int64_t kKeptBytes = 256 << 10;
  return row_bytes > kKeptBytes
             ? kTogetherMax
             : HWY_MIN(kTogetherMax, kKeptBytes / HWY_MAX(row_bytes, int64_t{1}));
}

// body(begin, end) for each segment of a row.
template <class Body>
HWY_INLINE void ForSegments(int64_t columns, const Body& body) {
  const int64_t segment = HWY_MIN(kSegment, SegmentMax());
  for (int64_t i = 0; i < columns; i += segment) body(i, HWY_MIN(columns, i + segment));
}

// The sums of x - about and of (x - about)^2, of the columns added so far.
struct RowSums {
  float about;
  Sums<2> total;
};

// Adds columns [begin, end). beside, and what is returned: AddSegment's.
template <class In, class Beside>
HWY_INLINE int64_t AddColumns(const In* x, int64_t begin, int64_t end, const Beside& beside,
                              RowSums& sums) {
  const DF d;
  const VF near = hn::Set(d, sums.about);
  const auto add = [](Sums<2>& of, VF difference) {
    of.of[0] = hn::Add(of.of[0], difference);
    of.of[1] = hn::MulAdd(difference, difference, of.of[1]);
  };
  return AddSegment(
      begin, end, [&](Sums<2>& of, int64_t i) { add(of, hn::Sub(Load(x + i), near)); },
      [&](Sums<2>& of, int64_t i, int64_t left) {
        // The lanes beyond the row must not add about^2.
        const auto held = hn::FirstN(d, static_cast<size_t>(left));
        add(of, hn::IfThenElseZero(held, hn::Sub(LoadTail(x + i, left), near)));
      },
      beside, sums.total);
}

// Of no columns yet; about the mean of what the row begins with.
template <class In>
HWY_INLINE RowSums NoneOf(const In* x, int64_t columns) {
  const int64_t count = HWY_MIN(columns, int64_t{64});
  return {SumOfRow(x, count) / static_cast<float>(count), Sums<2>::Zero()};
}

// What the sums say: the mean less `about`, and the variance.
struct Moments {
  float correction, variance;
};

HWY_INLINE Moments MomentsOf(const RowSums& sums, int64_t columns) {
  float sum[2];
  SumLanes(sums.total, sum);
  const float share = 1.0f / static_cast<float>(columns);
  const float correction = sum[0] * share;
  const float variance = sum[1] * share - correction * correction;
  return {correction, variance < 0 ? 0.0f : variance};
}

struct RowStats {
  float mean, scale;
};

template <class In>
HWY_INLINE RowStats StatsOf(RowSums sums, const In* x, int64_t columns, float eps) {
  Moments moments = MomentsOf(sums, columns);
  // Within a quarter of a deviation the sums lose no more than about the mean. A NaN stays one.
  if (!(16 * moments.correction * moments.correction <= moments.variance)) {
    sums = {sums.about + moments.correction, Sums<2>::Zero()};
    ForSegments(columns, [&](int64_t begin, int64_t end) {
      AddColumns(
          x, begin, end, [](int64_t) {}, sums);
    });
    moments = MomentsOf(sums, columns);
  }
  return {sums.about + moments.correction, RoundedInverseRoot(moments.variance + eps)};
}

template <class Out, class In>
HWY_INLINE void Write(const RowStats& stats, int64_t count, const In* x, const float* weight,
                      const float* bias, Out* y) {
  const VF mean = hn::Set(DF(), stats.mean), scale = hn::Set(DF(), stats.scale);
  Map<0>(
      count,
      [&](VF value, VF w, VF b) { return hn::MulAdd(hn::Mul(hn::Sub(value, mean), scale), w, b); },
      y, x, weight, bias);
}

template <class Out, class In>
void LayerNormTyped(const LayerNormArgs& args, const float* weight, const float* bias) {
  const int64_t rows = args.y.rows, columns = args.y.cols;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const auto x = [&](int64_t row) {
    return static_cast<const In*>(args.x.data) + row * args.x.stride;
  };
  const int64_t together = RowsTogether(columns * static_cast<int64_t>(sizeof(In)));
  RowSums sums[kTogetherMax];
  RowStats stats[kTogetherMax] = {};
  // While rows are written the next ones are summed, so that memory is read and written all the
  // time. At first there are none to write, at last none to sum.
  for (int64_t row = -together; row < rows; row += together) {
    const int64_t next = row + together;
    const int64_t written = row < 0 ? 0 : HWY_MIN(together, rows - row);
    const int64_t summed = HWY_MIN(together, rows - next);
    for (int64_t k = 0; k < summed; ++k) sums[k] = NoneOf(x(next + k), columns);
    ForSegments(columns, [&](int64_t begin, int64_t end) {
      for (int64_t k = 0; k < together; ++k) {
        const auto write = [&, of = stats[k]](int64_t i, int64_t count) {
          Out* y = static_cast<Out*>(args.y.data) + (row + k) * args.y.stride;
          Write(of, count, x(row + k) + i, weight + i, bias + i, y + i);
        };
        const auto beside = [&](int64_t i) {
          if (k < written) write(i, 4 * lanes);
        };
        const int64_t done =
            k < summed ? AddColumns(x(next + k), begin, end, beside, sums[k]) : begin;
        if (k < written) write(done, end - done);
      }
    });
    for (int64_t k = 0; k < summed; ++k) {
      stats[k] = StatsOf(sums[k], x(next + k), columns, args.eps);
    }
  }
}

}  // namespace

// weight, bias: in FP32, or ones and zeros.
void LayerNormRows(const LayerNormArgs& args, const float* weight, const float* bias) {
  VisitFloats(args.y_dtype, args.x_dtype, [&](auto out, auto in) {
    LayerNormTyped<decltype(out), decltype(in)>(args, weight, bias);
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
