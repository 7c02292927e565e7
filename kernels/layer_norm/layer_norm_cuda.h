// The launcher that the CUDA backend exports under "layer_norm".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Operands as in layer_norm.h; weight and bias are device memory of one dtype, or null. Returns a
// cudaError_t.
typedef int FuseblockLayerNorm(const FuseblockCudaRows* x, const void* weight, const void* bias,
                               int weight_dtype, float eps, const FuseblockCudaRows* y,
                               void* stream);
}
