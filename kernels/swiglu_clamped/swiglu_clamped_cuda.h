// The launcher that the CUDA backend exports under "swiglu_clamped".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// gate_up, y as in swiglu_clamped.h. Returns a cudaError_t.
typedef int FuseblockSwiGluClamped(const FuseblockCudaRows* gate_up, const FuseblockCudaRows* y,
                                   void* stream);
}
