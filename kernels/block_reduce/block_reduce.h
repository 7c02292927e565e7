// y = the sum or the maximum of each row, a row by one block of threads: the reduction over a block
// (reduce.cuh) as a kernel. The block has min(N, 1024) threads, a multiple of 32 or not; thread t
// takes elements t, t + 1024, ... in order; the threads are reduced as a tree in each warp, then
// the warps first to last.
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
// Smallest: [1, 1]. Boundary: max [NaN, 1] -> [NaN]. Invalid: x [3, 8] INT32.
// Source: Harris, Optimizing Parallel Reduction in CUDA, 2007.
#pragma once

#include "kernels/base/row_reduce.h"

namespace fuseblock {

absl::Span<const Implementation<RowReduceArgs>> BlockReduceRowsImplementations();

absl::Status BlockReduceRows(const ExecutionContext& context, ReduceOp op, const ConstTensorView& x,
                             const TensorView& y);

}  // namespace fuseblock
