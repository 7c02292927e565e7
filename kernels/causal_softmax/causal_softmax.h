// Softmax of attention scores under a causal mask: y[.., i, j] = e^(s x[.., i, j]) / the sum of
// that over the keys that query i keeps, and exactly 0 for the others. Query i keeps j <= i + (KV -
// Q): the last query sees every key (bottom-right alignment).
//
// x, y: the same shape [.., Q, KV], rank >= 2, last axis contiguous, leading axes collapsible to
// rows; a row's stride may exceed KV. y: FP32, FP16 or BF16; x: y's dtype or FP32. scale: s, > 0
// and at most 2^126. FP32 inside, one rounding at the end. Masked scores reach no
// output, whatever they hold. A query that keeps nothing (Q > KV: the first Q - KV), or whose kept
// scores are all -inf, gives zeros. A NaN or +inf among a query's kept scores makes its kept
// outputs NaN, and no other query's.
//
// The order of a row's summation is a function of the number of keys it keeps on the CPU, and of KV
// on CUDA (only columns that it keeps count). So query i of [Q, KV] has the bits of the one query
// of [1, k], k = i + 1 + KV - Q, on its first k scores: on the CPU always, and those of softmax.h
// when s = 1; on CUDA when KV and k are both in the same of (0, 512], (512, 1024], (1024, 2048],
// (2048, 4096], (4096, 8192], (8192, 16384] and beyond. In place: y may be x when the dtypes agree;
// a partial overlap is an error. Zero rows or keys: OK. Operands stay the caller's and are not kept
// once the kernel has finished. Errors: INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  x [[0, 7], [0, ln 3]] -> [[1, 0], [0.25, 0.75]]
// Smallest: [1, 1] -> 1. Boundary: Q = 5, KV = 3: rows 0 and 1 are zeros. Invalid: rank 1.
// Source: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2.3.
#pragma once

#include "kernels/base/unary.h"

namespace fuseblock {

struct CausalSoftmaxArgs : UnaryArgs {
  int64_t queries;  // Q; the rows are whole multiples of it
  float scale;
};

absl::Span<const Implementation<CausalSoftmaxArgs>> CausalSoftmaxImplementations();

absl::StatusOr<CausalSoftmaxArgs> CheckCausalSoftmax(const ConstTensorView& x, float scale,
                                                     const TensorView& y);
absl::Status CausalSoftmax(const ExecutionContext& context, const ConstTensorView& x, float scale,
                           const TensorView& y);

}  // namespace fuseblock
