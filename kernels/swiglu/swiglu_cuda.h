// The launcher that the CUDA backend exports under "swiglu".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// gate, up, y as in swiglu.h; hf_rounding: 1 for Rounding::kHf. Returns a cudaError_t.
typedef int FuseblockSwiGlu(const FuseblockCudaRows* gate, const FuseblockCudaRows* up,
                            int hf_rounding, const FuseblockCudaRows* y, void* stream);
}
