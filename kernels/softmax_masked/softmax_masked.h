// y = softmax(x + mask), over the last axis, as attention uses it: a row with nothing left gives 0.
//
// x, mask, y: the same shape [.., N], any N from 1 to 2^20 and beyond, last axis contiguous,
// leading axes collapsible to rows. y: FP32, FP16 or BF16; x, mask: each y's dtype or FP32. mask:
// added in FP32, not rounded; -inf takes a column out, and its output is exactly 0; absent: nothing
// is added. One mask for all rows is a view whose rows have stride 0. A row whose sums are all -inf
// gives zeros (softmax.h gives NaN); all else as there: FP32 inside, one rounding at the end, a row
// with a NaN or +inf gives NaN in all of it and no other row. In place: y may be x when the dtypes
// agree, or mask likewise; a partial overlap is an error. The order of summation depends on N
// alone. Zero rows: OK. Operands stay the caller's and are not kept once the kernel has finished.
// Errors: INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  x [0, ln 3, 7], mask [0, 0, -inf] -> [0.25, 0.75, 0]
// Smallest: [1, 1] -> 1. Boundary: mask all -inf -> zeros. Invalid: mask [N] for x [T, N].
// Source: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2.3.
#pragma once

#include <optional>

#include "kernels/base/unary.h"

namespace fuseblock {

struct SoftmaxMaskedArgs : UnaryArgs {
  std::optional<ConstRows> mask;
  DType mask_dtype;
};

absl::Span<const Implementation<SoftmaxMaskedArgs>> SoftmaxMaskedImplementations();

absl::StatusOr<SoftmaxMaskedArgs> CheckSoftmaxMasked(const ConstTensorView& x,
                                                     const std::optional<ConstTensorView>& mask,
                                                     const TensorView& y);
absl::Status SoftmaxMasked(const ExecutionContext& context, const ConstTensorView& x,
                           const std::optional<ConstTensorView>& mask, const TensorView& y);

}  // namespace fuseblock
