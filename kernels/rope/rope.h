// Rotary position embedding: turns each pair of columns of q and k by an angle that grows with the
// token's position.
//
// For the pair (a, b) of token t with w = positions[t] * f[pair] (rope_table.h), in radians:
//   a' = a cos w - b sin w,  b' = b cos w + a sin w
// in FP32, cos and sin exact to an FP32 rounding (times the table's attention factor before it),
// one rounding to the dtype. The first r = rotary_dims columns of a head turn; the others are
// copied, bit for bit; r = 0 copies all. Pairs of columns: kHalves (i, i + r/2), as Llama and
// GPT-NeoX; kNeighbours (2i, 2i + 1), as GPT-J.
//
// q: [tokens, heads, head_dim], FP32, FP16 or BF16, last axis contiguous, any strides on the other
// two, so that slices of one packed qkv buffer will do. k: optional, [tokens, kv_heads, head_dim],
// q's dtype, strides of its own. head_dim >= r, of any parity. q_out and k_out: the shape and dtype
// of q and k, strides of their own; each may be its input itself (in place) and must not touch
// anything else. positions: [tokens], INT64, contiguous, in any order, repeated or not. The table
// lies on the context's device. q and k are turned in one launch. Zero tokens or heads: OK.
// Operands stay the caller's and are not kept once the kernel has finished. Errors:
// INVALID_ARGUMENT naming the operand, expected and given; OUT_OF_RANGE "positions[17]: expected 0
// <= position < 131072, got -1" for the first bad position, and nothing is written. On CUDA the
// positions lie on the device and are not read back: the caller checks them on the host with
// CheckRopePositions before it copies them; a bad one there gives a wrong angle, and no access out
// of bounds.
//
// Example:  r = head_dim = 2, f = [1], position 1, q [[[1, 0]]] -> [[[0.540302306, 0.841470985]]]
// Smallest: head_dim = 1, r = 0, a copy. Boundary: position max_position - 1; position 0, where q
// stays as it is. Invalid: r = 3; head_dim < r; position max_position.
// Source: Su et al., 2021, https://arxiv.org/abs/2104.09864.
#pragma once

#include <optional>

#include "kernels/base/implementation.h"
#include "kernels/rope/rope_table.h"

namespace fuseblock {

enum class RopePairs { kHalves, kNeighbours };

struct RopeHeads {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t heads = 0;
  int64_t in_token_stride = 0, in_head_stride = 0;  // elements
  int64_t out_token_stride = 0, out_head_stride = 0;
};

struct RopeArgs {
  const RopeTable* table;
  RopePairs pairs;
  const void* positions;  // INT64, at any address
  int64_t tokens, head_dim;
  DType dtype;
  RopeHeads q, k;  // k.heads is 0 without k
};

absl::Span<const Implementation<RopeArgs>> RopeImplementations();

// OK when every position is in [0, max_position). positions: host memory, INT64; need not be
// aligned.
absl::Status CheckRopePositions(const void* positions, int64_t count, int64_t max_position);

struct RopeOperand {
  ConstTensorView in;
  TensorView out;
};

absl::StatusOr<RopeArgs> CheckRope(const RopeTable& table, RopePairs pairs,
                                   const ConstTensorView& positions, const RopeOperand& q,
                                   const std::optional<RopeOperand>& k);
absl::Status Rope(const ExecutionContext& context, const RopeTable& table, RopePairs pairs,
                  const ConstTensorView& positions, const RopeOperand& q,
                  const std::optional<RopeOperand>& k);

}  // namespace fuseblock
