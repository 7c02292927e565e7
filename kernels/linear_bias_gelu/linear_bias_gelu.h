// y[M, N] = gelu(x[M, K] * W[N, K]^T (+ bias[N])): the product with its bias and GELU in one call.
//
// Operands as linear.h's; y may be FP32 or the weight's dtype. The form of GELU is asked for by
// name and never substituted: they differ by 1.0e-4 at 2 and by 4.7e-4 at 2.7. It is applied to the
// FP32 sum after the bias, with one rounding to y's dtype behind it, so that y is what gelu_erf or
// gelu_tanh make of the product's FP32 output. The sum's order, and so a row's bits, are the
// product's own. K = 0 gives gelu(bias), or zeros without a bias; M = 0: OK. NaN and infinity as in
// gelu_erf.h. Operands stay the caller's and are not kept once the kernel has finished. Errors:
// INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  x [[1, 2]], W [[1, 0.5]], bias [0]: gelu(2) = 1.954499736 (kErf), 1.954597694 (kTanh)
// Smallest: M = N = K = 1. Boundary: K = 0. Invalid: x [M, K + 1]; y being x itself.
// Source: as linear.h, gelu_erf.h and gelu_tanh.h.
#pragma once

#include "kernels/base/gelu.h"
#include "kernels/linear/linear.h"

namespace fuseblock {

// The arguments for one of LinearImplementations().
absl::StatusOr<LinearArgs> CheckLinearBiasGelu(const ConstTensorView& x, const LinearWeight& weight,
                                               GeluForm form, const TensorView& y);
absl::Status LinearBiasGelu(const ExecutionContext& context, const ConstTensorView& x,
                            const LinearWeight& weight, GeluForm form, const TensorView& y);

}  // namespace fuseblock
