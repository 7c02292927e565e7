// The clamped SwiGLU on the CPU, FP32 inside, vectorised for the machine at run time.
#include "kernels/base/split.h"
#include "kernels/swiglu_clamped/constants.h"
#include "kernels/swiglu_clamped/swiglu_clamped.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu_clamped/swiglu_clamped_cpu.cc"
#include "hwy/foreach_target.h"
//
#include "kernels/base/gelu-inl.h"
#include "kernels/base/neighbours-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

// x sigmoid(1.702 x) is a form of GELU (gelu-inl.h): max(x, 0) - |x| sigmoid(-v), v = 1.702 |x|.
// Roundings, in units of 2^-24: e^-v 2, the sum 1, product and quotient 2.
struct SigmoidTail {
  static constexpr float kNear = 50.0f;
  static constexpr float kZero = 64.0f;

  template <bool near>
  HWY_INLINE Exponential Of(VF t) const {
    const DF d;
    const VF alpha = hn::Set(d, kSwiGluAlphaHigh);
    const VF v = hn::Mul(alpha, t);
    const VF low = hn::MulAdd(hn::Set(d, kSwiGluAlphaLow), t, ProductError(alpha, t, v));
    const Exponential e = ExpOfSum(hn::Neg(v), hn::Neg(low));
    // Where 2^exponent is no normal number, e^-v is nothing beside 1.
    const VF power =
        near ? e.power_of_two
             : hn::IfThenElseZero(hn::Gt(e.exponent, hn::Set(d, -64.0f)), e.power_of_two);
    const VF divisor = hn::MulAdd(e.fraction, power, hn::Set(d, 1.0f));
    return {hn::Div(hn::Mul(t, e.fraction), divisor), e.exponent, e.power_of_two};
  }
};

HWY_INLINE VF Clamped(const Neighbours& pair) {
  const DF d;
  const VF limit = hn::Set(d, kSwiGluLimit), low_limit = hn::Set(d, -kSwiGluLimit);
  // A NaN compares false and stays.
  const VF gate = hn::IfThenElse(hn::Gt(pair.even, limit), limit, pair.even);
  VF up = hn::IfThenElse(hn::Gt(pair.odd, limit), limit, pair.odd);
  up = hn::IfThenElse(hn::Lt(up, low_limit), low_limit, up);
  return hn::Mul(hn::Add(up, hn::Set(d, 1.0f)), GeluOf(SigmoidTail(), gate));
}

template <class Out, class In>
void ClampedRow(const In* gate_up, Out* y, int64_t columns) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t i = 0;
  for (; i + lanes <= columns; i += lanes) {
    Store(Clamped(LoadNeighbours(gate_up + 2 * i)), y + i);
  }
  if (i == columns) return;
  StoreTail(Clamped(LoadNeighboursTail(gate_up + 2 * i, columns - i)), y + i, columns - i);
}

template <class Out, class In>
void ClampedTyped(const SwiGluClampedArgs& args) {
  for (int64_t row = 0; row < args.y.rows; ++row) {
    ClampedRow(static_cast<const In*>(args.gate_up.data) + row * args.gate_up.stride,
               static_cast<Out*>(args.y.data) + row * args.y.stride, args.y.cols);
  }
}

}  // namespace

void SwiGluClampedRows(const SwiGluClampedArgs& args) {
  VisitFloat(args.y_dtype, [&](auto out) {
    using Out = decltype(out);
    if (args.in_dtype == args.y_dtype) {
      ClampedTyped<Out, Out>(args);
    } else {
      ClampedTyped<Out, float>(args);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(SwiGluClampedRows);

absl::Status SwiGluClampedHighway(const ExecutionContext& context, const SwiGluClampedArgs& args) {
  const int64_t row_bytes = args.y.cols * ComputedBytes(3);
  ForRanges(context.parallel_for, args.y.rows, row_bytes, [&](int64_t begin, int64_t end) {
    SwiGluClampedArgs part = args;
    part.gate_up = RowRange(args.gate_up, args.in_dtype, begin, end);
    part.y = RowRange(args.y, args.y_dtype, begin, end);
    HWY_DYNAMIC_DISPATCH(SwiGluClampedRows)(part);
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
