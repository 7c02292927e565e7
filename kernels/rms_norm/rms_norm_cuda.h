// The launcher that the CUDA backend exports under "rms_norm".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Operands as in rms_norm.h; weight is device memory or null; normalised_first: 1 for
// RmsNormForm::kNormalisedFirst. Returns a cudaError_t.
typedef int FuseblockRmsNorm(const FuseblockCudaRows* x, const void* weight, int weight_dtype,
                             float eps, float weight_offset, int normalised_first,
                             const FuseblockCudaRows* y, void* stream);
}
