// z = x + r: the residual addition.
//
// x, r, z: the same shape, any rank >= 1, last axis contiguous, leading axes collapsible to rows.
// z: FP32, FP16 or BF16. x and r: z's dtype or FP32, each on its own (a block keeps sums in FP32
// until the last addition). The sum is formed in FP32 and rounded once to z's dtype. In place: z
// may be x or r when the dtypes agree; a partial overlap is an error. NaN and infinity follow IEEE
// addition. Zero elements: OK, nothing is done. Operands stay the caller's and are not kept once
// the kernel has finished. Errors: INVALID_ARGUMENT naming the operand, expected and given;
// UNIMPLEMENTED when no implementation for the context's device is usable.
//
// Example:  [1.0, 2.0] + [0.5, -2.0] = [1.5, 0.0]
// Smallest: shape [1]. Boundary: shape [0, 7168], OK. Invalid: x [2, 3], r [3, 2].
// Source: the residual connection of He et al., 2015, https://arxiv.org/abs/1512.03385.
#pragma once

#include "kernels/base/implementation.h"

namespace fuseblock {

struct AddResidualArgs {
  ConstRows x, r;
  Rows z;
  DType x_dtype, r_dtype, z_dtype;
};

absl::Span<const Implementation<AddResidualArgs>> AddResidualImplementations();

absl::StatusOr<AddResidualArgs> CheckAddResidual(const ConstTensorView& x, const ConstTensorView& r,
                                                 const TensorView& z);
absl::Status AddResidual(const ExecutionContext& context, const ConstTensorView& x,
                         const ConstTensorView& r, const TensorView& z);

}  // namespace fuseblock
