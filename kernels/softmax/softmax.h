// y = e^(x - max(x)) / sum(e^(x - max(x))), over the last axis.
//
// x, y: the same shape [.., N], any N from 1 to 2^20 and beyond, last axis contiguous, leading axes
// collapsible to rows. y: FP32, FP16 or BF16; x: y's dtype or FP32. FP32 inside, one rounding at
// the end; an output's relative error before it grows with max(x) - x, which is rounded once. The
// order of summation depends on N alone. In place: y may be x when the dtypes agree; a partial
// overlap is an error. Zero rows: OK. A row that holds a NaN or +inf, or is all -inf, gives NaN in
// all of it, and no other row; beside a finite value -inf gives 0 (softmax_masked.h gives zeros for
// a row that is all -inf). Operands stay the caller's and are not kept once the kernel has
// finished. Errors: INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  x [0, ln 2, ln 5] -> [0.125, 0.25, 0.625]
// Smallest: [1, 1] -> 1. Boundary: [1e4, -1e4] -> [1, 0]; [-inf, -inf] -> [NaN, NaN].
// Invalid: x FP16 with y BF16.
// Source: Bridle, 1990, https://doi.org/10.1007/978-3-642-76153-9_28.
#pragma once

#include "kernels/base/unary.h"

namespace fuseblock {

absl::Span<const Implementation<UnaryArgs>> SoftmaxImplementations();

absl::Status Softmax(const ExecutionContext& context, const ConstTensorView& x,
                     const TensorView& y);

}  // namespace fuseblock
