// The launcher that the CUDA backend exports under "silu".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// x, y as in silu.h. Returns a cudaError_t.
typedef int FuseblockSilu(const FuseblockCudaRows* x, const FuseblockCudaRows* y, void* stream);
}
