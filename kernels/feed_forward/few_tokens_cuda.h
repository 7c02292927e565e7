// The launchers that the CUDA backend exports for the feed-forward of few tokens:
// "few_tokens_pack", "few_tokens". Absent from a backend without code for sm_90a.
#pragma once

#include "kernels/base/cuda_table.h"
#include "kernels/feed_forward/few_tokens_plan.h"

// A call's operands, in device memory.
typedef struct FuseblockFewTokens {
  int form;  // fuseblock::FeedForwardForm
  const fuseblock::FewTokensPlan* plan;
  const void* packed;          // as few_tokens_pack leaves it
  const float* up_bias;        // [intermediate], of a dense form; null: none
  const float* down_bias;      // [hidden]; null: none
  FuseblockCudaRows x;         // [tokens, hidden], FP16 or BF16, on 16-byte boundaries
  FuseblockCudaRows y;         // that dtype or FP32
  int on_path;                 // 1: h = x (+ residual), y = h + mlp(norm(h)); 0: y = mlp(x)
  FuseblockCudaRows residual;  // data null: none
  const void* norm;            // [hidden] of x's dtype, null: none
  float eps, norm_offset;
  // In blocks of TileWidth tokens, in tiles:
  void* n;         // the products' input
  void* product;   // what down reads
  void* meetings;  // [ManyTokensMeetingBytes], 16-byte aligned; for more than kFewTokensMax tokens
  // A product's plan of the plain down weight, by which more than kFewTokensMax tokens go through
  // it instead; without a residual, y in x's dtype. Null: none.
  const void* library_down;
} FuseblockFewTokens;

extern "C" {
// gate (null where the plan has up alone), up: [intermediate, hidden]; down: [hidden,
// intermediate]; dense, 16 bits an element, on 16-byte boundaries. packed: plan->bytes(). Returns a
// cudaError_t.
typedef int FuseblockFewTokensPack(const fuseblock::FewTokensPlan* plan, const void* gate,
                                   const void* up, const void* down, void* packed, void* stream);
// Any x.rows from 1 on. Returns a cudaError_t.
typedef int FuseblockFewTokensRun(const FuseblockFewTokens* args, void* stream);
}
