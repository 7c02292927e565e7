// y = silu(gate) * up: the gate of a SwiGLU feed-forward.
//
// gate, up, y: the same shape [.., d], last axis contiguous, leading axes collapsible to rows. Gate
// and up may be the two halves of one packed tensor [.., 2d] (gate first): pass two views with row
// stride 2d, or call SwiGluPacked. Any d >= 0, also 1, 2, 3 and 5.
// y: FP32, FP16 or BF16; gate and up: both y's dtype or both FP32.
// Rounding kFused: FP32 throughout, one rounding. kHf: silu(gate) is rounded to y's dtype before
// the product, as transformers' act_fn(gate) * up stores it (needs gate and up in y's dtype, else
// INVALID_ARGUMENT).
// kHf evaluates silu in FP32 as eager code does, gate / (1 + exp(-gate)): for gate <= -88.7228394,
// where that exp overflows, it is -0 (kFused keeps the value, down to -2.4e-37; neither gives NaN
// for -inf). FP16: 255.9 * 261.75 overflows to inf, as it must; it stays in its row. gate = -3e38
// with up = 3e38 is no NaN: silu(-3e38) = -0. In place: y may be gate or up when the dtypes agree;
// a partial overlap is an error. Operands stay the caller's and are not kept once the kernel has
// finished. Errors: INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  gate [0, 1], up [3, 2] -> [0, 1.462117157...]
// Smallest: shape [1]. Boundary: [0, 7168], OK. Invalid: packed with an odd number of columns.
// Source: Shazeer, 2020, https://arxiv.org/abs/2002.05202.
#pragma once

#include "kernels/base/implementation.h"
#include "kernels/base/rounding.h"

namespace fuseblock {

struct SwiGluArgs {
  ConstRows gate, up;
  Rows y;
  DType in_dtype, y_dtype;
  Rounding rounding;
};

absl::Span<const Implementation<SwiGluArgs>> SwiGluImplementations();

absl::StatusOr<SwiGluArgs> CheckSwiGlu(const ConstTensorView& gate, const ConstTensorView& up,
                                       Rounding rounding, const TensorView& y);
absl::Status SwiGlu(const ExecutionContext& context, const ConstTensorView& gate,
                    const ConstTensorView& up, Rounding rounding, const TensorView& y);
// gate_up: [.., 2d], the gate half first.
absl::Status SwiGluPacked(const ExecutionContext& context, const ConstTensorView& gate_up,
                          Rounding rounding, const TensorView& y);

}  // namespace fuseblock
