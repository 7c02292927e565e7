// y = x / sqrt(mean(x^2) + eps) * (weight + weight_offset), over the last axis.
//
// x, y: the same shape [.., H], any H from 1 to 262,144 and beyond, last axis contiguous, leading
// axes collapsible to rows. y: FP32, FP16 or BF16; x: y's dtype or FP32. weight: a contiguous [H]
// of y's dtype or FP32, or absent (all ones; weight_offset must then be 0). eps > 0 and finite,
// inside the root: a zero row gives zeros. Squares and their sum are in FP32, so FP16 rows of
// magnitude up to 65504 are finite. The order of summation depends on H alone. Rounding: see
// RmsNormForm in base/rounding.h. kOnce: one rounding at the end, weight and offset added in FP32.
// kNormalisedFirst: n is rounded to y's dtype, then n * (weight + offset) is rounded to it. In
// place: y may be x when the dtypes agree; a partial overlap is an error. Zero rows: OK. NaN or
// infinity in a row makes that row NaN (or inf/inf = NaN, and 0 elsewhere) and no other. Operands
// stay the caller's and are not kept once the kernel has finished. Errors: INVALID_ARGUMENT naming
// the operand, expected and given.
//
// Example:  x [3, 4], no weight, eps 1e-12 -> [0.848528, 1.131371]   (mean of squares 12.5)
// Smallest: [1, 1]. Boundary: a zero row -> zeros. Invalid: eps = 0; weight [H + 1].
// Source: Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467.
#pragma once

#include <optional>

#include "kernels/base/rounding.h"
#include "kernels/base/unary.h"

namespace fuseblock {

struct RmsNormArgs : UnaryArgs {
  const void* weight;  // null: all ones
  DType weight_dtype;
  RmsNormParams params;
};

absl::Span<const Implementation<RmsNormArgs>> RmsNormImplementations();

absl::StatusOr<RmsNormArgs> CheckRmsNorm(const ConstTensorView& x,
                                         const std::optional<ConstTensorView>& weight,
                                         const RmsNormParams& params, const TensorView& y);
absl::Status RmsNorm(const ExecutionContext& context, const ConstTensorView& x,
                     const std::optional<ConstTensorView>& weight, const RmsNormParams& params,
                     const TensorView& y);

}  // namespace fuseblock
