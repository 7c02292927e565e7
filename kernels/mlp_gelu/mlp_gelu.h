// y = down(gelu(up(x) + b1)) + b2: the feed-forward without a gate.
//
// Operands, workspace, bits and errors as in feed_forward.h; up's and down's bias may each be
// absent, and gate stays empty. The weights' form says which GELU, kGeluTanh or kGeluErf, which
// never stand in for one another; another form is INVALID_ARGUMENT.
// Rounding kFused: b1 is added to up's FP32 sum, gelu of that is rounded once to the dtype, b2 is
// added to down's FP32 sum, which is rounded once to y's dtype. kHf: up with its bias, gelu and
// down with its bias are each rounded to the dtype (y FP32 is then INVALID_ARGUMENT unless the
// dtype is FP32).
//
// Example:  H = I = 1, up = down = [[1]], b1 = [1], b2 = [3], x = [[1]] -> [[4.954499736]] (erf),
//           [[4.954597694]] (tanh)
// Smallest: H = I = 1. Boundary: 0 rows. Invalid: down [H, I + 1].
// Source: transformers' GPT2MLP (tanh) and GPTNeoXMLP (erf).
#pragma once

#include "kernels/feed_forward/feed_forward.h"

namespace fuseblock {

absl::Status MlpGelu(const ExecutionContext& context, const ConstTensorView& x,
                     const FeedForwardWeights& weights, Rounding rounding, const TensorView& y,
                     absl::Span<std::byte> workspace);

}  // namespace fuseblock
