// The launcher that the CUDA backend exports under "rope".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {

// [tokens, heads, head_dim] and where it goes; strides in elements. heads 0: absent.
typedef struct FuseblockRopeHeads {
  const void* in;
  void* out;
  int64_t heads;
  int64_t in_token_stride, in_head_stride;
  int64_t out_token_stride, out_head_stride;
} FuseblockRopeHeads;

// Operands as in rope.h, all pointers to device memory.
typedef struct FuseblockRopeCall {
  FuseblockRopeHeads q, k;
  const int64_t* positions;
  const double* inverse_frequencies;
  double attention_factor;
  int64_t tokens, head_dim, rotary_dims;
  int neighbours;  // 1 for RopePairs::kNeighbours
  int dtype;
} FuseblockRopeCall;

// Returns a cudaError_t.
typedef int FuseblockRope(const FuseblockRopeCall* call, void* stream);
}
