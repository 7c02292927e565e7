// The product in plain FP32 FMA, for every size, stride and alignment: what a plan falls back to,
// and what the pinned algorithms are compared with.
#pragma once

#include <cuda_runtime.h>

#include "kernels/base/cuda_table.h"
#include "kernels/linear/epilogue.h"

namespace fuseblock {

// y = x * weight^T (+ bias), then the epilogue. weight: dense [n, k] of x's dtype; bias: FP32 [n]
// or null; y: x's dtype or FP32. An output is summed along K in segments of 64, each a chain of
// FMA, the segments added in order: its bits depend on nothing but its row of x and its row of the
// weight.
cudaError_t LaunchLinearTiles(const FuseblockCudaRows& x, const void* weight, const float* bias,
                              const FuseblockCudaRows& y, LinearEpilogue epilogue,
                              cudaStream_t stream);

// y = epilogue(x + bias) on every row, x FP32, bias FP32 [n] or null, rounded once to y's dtype; y
// may be x.
cudaError_t LaunchEpilogue(const FuseblockCudaRows& x, const float* bias,
                           const FuseblockCudaRows& y, LinearEpilogue epilogue,
                           cudaStream_t stream);

}  // namespace fuseblock
