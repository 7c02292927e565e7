// The type of the launchers of y = f(x) (unary.h).
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Operands as in unary.h. Returns a cudaError_t.
typedef int FuseblockUnary(const FuseblockCudaRows* x, const FuseblockCudaRows* y, void* stream);
}
