// The launcher that the CUDA backend exports under "embedding".
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Operands as in embedding.h, ids checked by the caller; padding_id: host memory, read before the
// call returns, or null. Returns a cudaError_t.
typedef int FuseblockEmbedding(const void* ids, int ids_dtype, int64_t count,
                               const FuseblockCudaRows* table, float scale,
                               const int64_t* padding_id, const FuseblockCudaRows* y, void* stream);
}
