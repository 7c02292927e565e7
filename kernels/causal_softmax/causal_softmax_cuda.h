// The launcher that the CUDA backend exports under "causal_softmax".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Operands as in causal_softmax.h, leading axes collapsed. Returns a cudaError_t.
typedef int FuseblockCausalSoftmax(const FuseblockCudaRows* x, int64_t queries, float scale,
                                   const FuseblockCudaRows* y, void* stream);
}
