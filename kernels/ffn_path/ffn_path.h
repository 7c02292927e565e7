// h = x (+ residual); y = h + mlp(norm(h)): the feed-forward half of a transformer layer, the
// residual stream included.
//
// x, residual, y: [.., H] of the weights' dtype, FP32, FP16 or BF16; last axis contiguous, leading
// axes collapsible; residual may be absent. norm: [H] of that dtype or FP32, or absent, by RMSNorm.
// y must not overlap x or residual.
// Rounding kFused: h stays FP32, for the norm and for the last addition; norm(h) is rounded once
// (params.form must be kOnce), the feed-forward as in mlp_swiglu.h, y is rounded once. kHf: h, the
// norm's result by its form, and the feed-forward's tensors are rounded to the dtype.
// workspace: FfnPathWorkspaceBytes(rows, ..) bytes on the device, 256-byte aligned, not shared with
// a call that is running.
// A row's bits do not depend on the other rows. Zero rows: OK.
// Operands stay the caller's and are not kept once the kernel has finished. Errors:
// INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  H = I = 1, all weights [[1]], no residual, x = [[2]], eps ~ 0 -> n = 1, y = 2.7310586
// Smallest: H = I = 1. Boundary: 0 rows. Invalid: residual of another shape than x.
// Source: the pre-norm residual block of transformers' LlamaDecoderLayer.
#pragma once

#include "kernels/feed_forward/feed_forward.h"

namespace fuseblock {

struct FfnPathArgs {
  ConstTensorView x;
  ConstTensorView residual;  // rank 0 and no data: none
  ConstTensorView norm;      // the same
  RmsNormParams params;
  const FeedForwardWeights* weights;
  Rounding rounding;
  TensorView y;
  absl::Span<std::byte> workspace;
};

absl::Span<const Implementation<FfnPathArgs>> FfnPathImplementations();

size_t FfnPathWorkspaceBytes(const FeedForwardWeights& weights, int64_t rows, Rounding rounding);

absl::Status FfnPath(const ExecutionContext& context, const FfnPathArgs& args);

}  // namespace fuseblock
