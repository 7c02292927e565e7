// y = (up + 1) * gate * sigmoid(1.702 * gate) of clamped, interleaved gate and up: the gate of
// gpt-oss's experts.
//
// gate_up: [.., 2d], gate in the even columns and up in the odd ones, last axis contiguous, leading
// axes collapsible to rows. gate is first clamped to at most 7, up to [-7, 7]. y: [.., d], FP32,
// FP16 or BF16; gate_up: y's dtype or FP32; apart from y. Any d >= 0, also 1, 2, 3 and 5. FP32
// throughout, one rounding. gate = -inf gives 0 and +inf is 7; up = +-inf is +-7; a NaN in gate or
// up stays a NaN, in its column. Operands stay the caller's and are not kept once the kernel has
// finished. Errors: INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  gate_up [1, 2, 9, -9] -> [3 * 0.845795765..., -6 * 6.999953147...]
// Smallest: [2]. Boundary: [0, 2d], OK. Invalid: an odd number of columns.
// Source: OpenAI, 2025, gpt-oss model card, https://arxiv.org/abs/2508.10925.
#pragma once

#include "kernels/base/implementation.h"

namespace fuseblock {

struct SwiGluClampedArgs {
  ConstRows gate_up;
  Rows y;
  DType in_dtype, y_dtype;
};

absl::Span<const Implementation<SwiGluClampedArgs>> SwiGluClampedImplementations();

absl::StatusOr<SwiGluClampedArgs> CheckSwiGluClamped(const ConstTensorView& gate_up,
                                                     const TensorView& y);
absl::Status SwiGluClamped(const ExecutionContext& context, const ConstTensorView& gate_up,
                           const TensorView& y);

}  // namespace fuseblock
