// y = x * sigmoid(x), also called swish.
//
// x, y: the same shape, any rank >= 1, last axis contiguous, leading axes collapsible to rows.
// y: FP32, FP16 or BF16; x: y's dtype or FP32. Computed in FP32 and rounded once.
// silu(-inf) = -0, silu(+inf) = +inf, NaN stays NaN; no finite input overflows, and FP32 results
// down to the smallest normal are kept (inputs near -91). In place: y may be x when the dtypes
// agree; a partial overlap is an error. Zero elements: OK. Operands stay the caller's and are not
// kept once the kernel has finished. Errors: INVALID_ARGUMENT naming the operand, expected and
// given.
//
// Example:  silu([0, 1]) = [0, 0.731058578...]
// Smallest: shape [1]. Boundary: x = -inf gives -0. Invalid: x [4] INT32.
// Source: Elfwing et al., 2017, https://arxiv.org/abs/1702.03118.
#pragma once

#include "kernels/base/unary.h"

namespace fuseblock {

absl::Span<const Implementation<UnaryArgs>> SiluImplementations();

absl::Status Silu(const ExecutionContext& context, const ConstTensorView& x, const TensorView& y);

}  // namespace fuseblock
