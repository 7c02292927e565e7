// The launcher that the CUDA backend exports under "add_residual".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// x, r, z as in add_residual.h. Returns a cudaError_t.
typedef int FuseblockAddResidual(const FuseblockCudaRows* x, const FuseblockCudaRows* r,
                                 const FuseblockCudaRows* z, void* stream);
}
