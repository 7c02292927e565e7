// FuseblockCudaRuntime::copy_by_kernel (cuda_table.h).
#include "kernels/base/cuda_launch.cuh"
#include "kernels/cuda/copy.h"

namespace fuseblock {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    CopyKernel(uint4* __restrict__ destination, const uint4* __restrict__ source, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) destination[i] = source[i];
}

}  // namespace

int LaunchCopy(void* destination, const void* source, size_t bytes, void* stream) {
  const auto count = static_cast<int64_t>(bytes / sizeof(uint4));
  return Launch(CopyKernel, CeilDiv(count, kThreads), kThreads, static_cast<cudaStream_t>(stream),
                static_cast<uint4*>(destination), static_cast<const uint4*>(source), count);
}

}  // namespace fuseblock
