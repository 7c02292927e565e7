// The launcher that the CUDA backend exports under "geglu".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// gate, up, y as in geglu.h; erf: 1 for GeluForm::kErf; hf_rounding: 1 for Rounding::kHf. Returns a
// cudaError_t.
typedef int FuseblockGeGlu(const FuseblockCudaRows* gate, const FuseblockCudaRows* up, int erf,
                           int hf_rounding, const FuseblockCudaRows* y, void* stream);
}
