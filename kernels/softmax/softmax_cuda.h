// The launcher that the CUDA backend exports under "softmax".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Operands as in softmax.h. Returns a cudaError_t.
typedef int FuseblockSoftmax(const FuseblockCudaRows* x, const FuseblockCudaRows* y, void* stream);
}
