// y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, over the last axis.
//
// x, y: the same shape [.., H], any H from 1 to 262,144 and beyond, last axis contiguous, leading
// axes collapsible to rows. y: FP32, FP16 or BF16; x: y's dtype or FP32. weight, bias: contiguous
// [H] of y's dtype or FP32, each may be absent (ones, zeros); where both are given they have one
// dtype. The variance is the mean of (x - mean)^2; eps > 0 and finite, inside the root. FP32
// inside, one rounding at the end. The mean is within one rounding of FP32 of the exact one (for
// 16-bit x and 2^-14 deviations), so a constant row gives exactly bias, and a mean large beside the
// deviation costs no more than that rounding; magnitudes up to 1e16 do not overflow. The order of
// summation depends on H alone. In place: y may be x when the dtypes agree; a partial overlap is an
// error. Zero rows: OK. NaN or infinity in a row makes that row NaN and no other. Operands stay the
// caller's and are not kept once the kernel has finished. Errors: INVALID_ARGUMENT naming the
// operand, expected and given.
//
// Example:  x [1, 2, 3, 6], weight [1, 1, 1, 2], bias [0, 0, 1, 1], eps 1e-12
//           -> [-1.069045, -0.534522, 1, 4.207135]                 (mean 3, variance 3.5)
// Smallest: [1, 1] -> bias. Boundary: a constant row -> bias. Invalid: eps = 0; bias [H + 1].
// Source: Ba, Kiros and Hinton, 2016, https://arxiv.org/abs/1607.06450.
#pragma once

#include <optional>

#include "kernels/base/unary.h"

namespace fuseblock {

struct LayerNormArgs : UnaryArgs {
  const void* weight;  // null: all ones
  const void* bias;    // null: all zeros
  DType weight_dtype;  // of weight and bias
  float eps;
};

absl::Span<const Implementation<LayerNormArgs>> LayerNormImplementations();

absl::StatusOr<LayerNormArgs> CheckLayerNorm(const ConstTensorView& x,
                                             const std::optional<ConstTensorView>& weight,
                                             const std::optional<ConstTensorView>& bias, float eps,
                                             const TensorView& y);
absl::Status LayerNorm(const ExecutionContext& context, const ConstTensorView& x,
                       const std::optional<ConstTensorView>& weight,
                       const std::optional<ConstTensorView>& bias, float eps, const TensorView& y);

}  // namespace fuseblock
