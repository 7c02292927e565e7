// y = the sum or the maximum of each row, a row by one warp: the reduction over a warp
// (reduce.cuh) as a kernel. Lane l of min(N, 32) takes elements l, l + 32, ... in order; the lanes
// are reduced as a tree. For rows of a few hundred elements; block_reduce.h is for longer ones.
//
// x: FP32, FP16 or BF16, [.., N], any N >= 0, last axis contiguous, leading axes collapsible to
// rows. y: x's shape with a last axis of 1, of x's dtype or FP32. FP32 inside, one rounding at the
// end; a sum's order is a function of N alone. kSum: an infinity or a NaN is what IEEE addition
// makes of it; N = 0 gives 0. kMax: a NaN anywhere in a row gives NaN, a row that is all -inf gives
// -inf, as does N = 0; which of 0 and -0 is the larger is not said. What is in a row reaches no
// other row. y lies apart from x. Zero rows: OK. Operands stay the caller's and are not kept once
// the kernel has finished. Errors: INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  sum [1, 2, 4] -> [7]; max [1, 4, 2] -> [4]
// Smallest: [1, 1]. Boundary: max [-inf, -inf] -> [-inf]. Invalid: y [3] for x [3, 8].
// Source: the tree is Kogge and Stone, 1973, https://doi.org/10.1109/TC.1973.5009159.
#pragma once

#include "kernels/base/row_reduce.h"

namespace fuseblock {

absl::Span<const Implementation<RowReduceArgs>> WarpReduceRowsImplementations();

absl::Status WarpReduceRows(const ExecutionContext& context, ReduceOp op, const ConstTensorView& x,
                            const TensorView& y);

}  // namespace fuseblock
