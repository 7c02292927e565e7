// y = down(silu(gate(x)) * up(x)): the SwiGLU feed-forward.
//
// Operands, workspace, bits and errors as in feed_forward.h; weights of another form than kSwiGlu
// are INVALID_ARGUMENT.
// Rounding kFused: gate and up stay FP32, silu(gate) * up is rounded once to the dtype, down's sum
// is FP32, rounded once to y's dtype. kHf: gate, up, silu(gate), the product and down are each
// rounded to the dtype (y FP32 is then INVALID_ARGUMENT unless the dtype is FP32).
// FP16 overflow of silu(gate) * up gives infinity, as it must.
//
// Example:  H = I = 1, gate = up = down = [[1]], x = [[1]] -> [[0.731058578...]]
// Smallest: H = I = 1. Boundary: 0 rows. Invalid: down [H, I + 1].
// Source: Shazeer, 2020, https://arxiv.org/abs/2002.05202; transformers' LlamaMLP.
#pragma once

#include "kernels/feed_forward/feed_forward.h"

namespace fuseblock {

absl::Status MlpSwiGlu(const ExecutionContext& context, const ConstTensorView& x,
                       const FeedForwardWeights& weights, Rounding rounding, const TensorView& y,
                       absl::Span<std::byte> workspace);

}  // namespace fuseblock
