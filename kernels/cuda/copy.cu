// The kernel that copies small batches, between pinned memory and the device.
#include "kernels/base/cuda_launch.cuh"
#include "kernels/cuda/copy.h"

namespace fuseblock {
namespace {

constexpr int kThreads = 256;

__device__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Every block stamps its end over the others', so that about the last one's stands. The source may
// be what a predecessor still writes when this kernel starts: it is not __restrict__.
__global__ void __launch_bounds__(kThreads)
    CopyKernel(uint4* destination, const uint4* source, int64_t count, volatile uint64_t* stamps) {
  AwaitPredecessors();
  if (blockIdx.x == 0 && threadIdx.x == 0) stamps[0] = Nanoseconds();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) destination[i] = source[i];
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  stamps[1] = Nanoseconds();
}

}  // namespace

int LaunchCopy(void* destination, const void* source, size_t bytes, uint64_t* stamps,
               void* stream) {
  if (bytes % sizeof(uint4) != 0) return cudaErrorInvalidValue;
  const auto count = static_cast<int64_t>(bytes / sizeof(uint4));
  return LaunchOverlapped(CopyKernel, CeilDiv(count, kThreads), kThreads,
                          static_cast<cudaStream_t>(stream), static_cast<uint4*>(destination),
                          static_cast<const uint4*>(source), count, stamps);
}

}  // namespace fuseblock
