// The read ceiling of a benchmark: how fast this GPU reads memory once when nothing else is to do.
//
// Plain loads of 16 bytes, several in flight for each thread, eight blocks a multiprocessor, each
// with a contiguous share: nothing that was tried streams faster (copies by the copy engine in
// pieces of 16 KiB are as fast).
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kBlock = 256;
constexpr int kBlocksOfMultiprocessor = 8;

__device__ uint4 LoadOnce(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

template <int kInFlight>
__global__ void __launch_bounds__(kBlock, kBlocksOfMultiprocessor)
    ReadKernel(const uint4* data, int64_t count, unsigned* sink) {
  const int64_t share = (count + gridDim.x - 1) / gridDim.x;
  const int64_t first = share * blockIdx.x;
  const int64_t end = first + share < count ? first + share : count;
  unsigned bits = 0;
  for (int64_t i = first + threadIdx.x; i < end; i += kInFlight * kBlock) {
    uint4 v[kInFlight] = {};
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (i + j * kBlock < end) v[j] = LoadOnce(data + i + j * kBlock);
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) bits ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (bits == 0x2f1e3d4cu) *sink = bits;  // so that nothing is left out; hardly ever done
}

}  // namespace

// Reads `bytes`, a multiple of 16, once, with 4 or 8 loads in flight. sink: a word of device
// memory. Returns a cudaError_t.
extern "C" __attribute__((visibility("default"))) int fuseblock_read(const void* data,
                                                                     int64_t bytes, int in_flight,
                                                                     void* sink, void* stream) {
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) return error;
  const auto kernel = in_flight == 4 ? ReadKernel<4> : ReadKernel<8>;
  kernel<<<multiprocessors * kBlocksOfMultiprocessor, kBlock, 0,
           static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(data), bytes / 16,
                                                static_cast<unsigned*>(sink));
  return cudaGetLastError();
}
