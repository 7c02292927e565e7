// The launchers that the CUDA backend exports for products: "linear_plan", "linear_plan_free",
// "linear". A plan pins cuBLASLt algorithms (no split along K, no TF32, no workspace) for a weight
// on a device, or FP32 FMA tiles where no algorithm can be had.
#pragma once

#include "kernels/base/cuda_table.h"

extern "C" {
// Makes a plan for weights of [n, k] of that dtype at `weight` (device memory, dense rows), with an
// FP32 bias [n] (device memory) or null, K summed in that many equal segments, added in order.
// Every algorithm pinned gives probe rows the same bits, alone and in batches, for outputs in the
// dtype and in FP32; algorithm: what was pinned, for people, 64 bytes. Returns a cudaError_t.
typedef int FuseblockLinearPlan(int device, int dtype, int64_t n, int64_t k, int segments,
                                const void* weight, const float* bias, void** plan,
                                char* algorithm);
typedef void FuseblockLinearPlanFree(void* plan);
// y = x * weight^T (+ bias), then the epilogue, a fuseblock::LinearEpilogue; the plan may be used
// by many streams at a time. Returns a cudaError_t.
typedef int FuseblockLinear(const void* plan, const FuseblockCudaRows* x,
                            const FuseblockCudaRows* y, int epilogue, void* stream);
}

namespace fuseblock {

// Within the backend: y = (add +) x * weight^T, rounded once, of rows on 16-byte boundaries, all of
// the weight's dtype; add.data null: none. cudaErrorNotSupported for a plan with a bias, with
// segments or without the library's algorithms.
int RunLinearOnto(const void* plan, const FuseblockCudaRows& x, const FuseblockCudaRows& add,
                  const FuseblockCudaRows& y, void* stream);

}  // namespace fuseblock
