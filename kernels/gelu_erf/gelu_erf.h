// y = x Phi(x) = x (1 + erf(x / sqrt(2))) / 2: the exact form of GELU. gelu_tanh.h is another
// function, by up to 4.8e-4, and neither ever stands in for the other.
//
// x, y: the same shape, any rank >= 1, last axis contiguous, leading axes collapsible to rows.
// y: FP32, FP16 or BF16; x: y's dtype or FP32. Computed in FP32 and rounded once, within a few
// ulp of FP32 for every finite x, also where 1 + erf cancels (x = -13 gives -8.0e-38); a 16-bit
// result within 2^-16 of the value beside its rounding. gelu(-inf) = 0 of either sign, gelu(+inf)
// = +inf, NaN stays NaN, no finite input overflows. In place: y may be x when the dtypes agree; a
// partial overlap is an error. Zero elements: OK. Operands stay the caller's and are not kept once
// the kernel has finished. Errors: INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  gelu_erf([0, 1, 2]) = [0, 0.841344746..., 1.954499736...]
// Smallest: shape [1]. Boundary: x = -inf gives 0. Invalid: x [4] INT32.
// Source: Hendrycks and Gimpel, 2016, https://arxiv.org/abs/1606.08415.
#pragma once

#include "kernels/base/unary.h"

namespace fuseblock {

absl::Span<const Implementation<UnaryArgs>> GeluErfImplementations();

absl::Status GeluErf(const ExecutionContext& context, const ConstTensorView& x,
                     const TensorView& y);

}  // namespace fuseblock
