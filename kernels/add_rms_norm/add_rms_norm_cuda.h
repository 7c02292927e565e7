// The launcher that the CUDA backend exports under "add_rms_norm".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Operands as in add_rms_norm.h; weight and residual_out may be null; hf_sum: 1 when the sum is
// rounded before the norm. Returns a cudaError_t.
typedef int FuseblockAddRmsNorm(const FuseblockCudaRows* x, const FuseblockCudaRows* r,
                                const void* weight, int weight_dtype, float eps,
                                float weight_offset, int normalised_first, int hf_sum,
                                const FuseblockCudaRows* y, const FuseblockCudaRows* residual_out,
                                void* stream);
}
