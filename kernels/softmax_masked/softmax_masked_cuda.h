// The launcher that the CUDA backend exports under "softmax_masked".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Operands as in softmax_masked.h; mask may be null. Returns a cudaError_t.
typedef int FuseblockSoftmaxMasked(const FuseblockCudaRows* x, const FuseblockCudaRows* mask,
                                   const FuseblockCudaRows* y, void* stream);
}
