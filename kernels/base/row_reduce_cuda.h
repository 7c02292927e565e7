// The type of the launchers that reduce rows (row_reduce.h).
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Operands as in row_reduce.h; max: 1 for the maximum, 0 for the sum. Returns a cudaError_t.
typedef int FuseblockRowReduce(const FuseblockCudaRows* x, int max, const FuseblockCudaRows* y,
                               void* stream);
}
