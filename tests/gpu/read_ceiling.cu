// The read ceiling of a benchmark: how fast this GPU reads memory once when nothing else is to do.
//
// Plain loads of 16 bytes, several in flight for each thread. Which of the ways below is the
// fastest depends on the card and on the size, by a few per cent, so a benchmark tries them all.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kBlock = 256;

__device__ uint4 LoadOnce(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ unsigned Bits(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

// A block reads `share` pieces of kBlock loads: one after the other, or every gridDim-th.
template <int kInFlight, int kBlocksOfMultiprocessor, bool kInterleaved>
__global__ void __launch_bounds__(kBlock, kBlocksOfMultiprocessor)
    ReadKernel(const uint4* data, int64_t count, unsigned* sink) {
  const int64_t pieces = (count + kBlock - 1) / kBlock;
  const int64_t share = (pieces + gridDim.x - 1) / gridDim.x * kBlock;
  const int64_t step = kInterleaved ? int64_t{gridDim.x} * kBlock : kBlock;
  const int64_t first = kInterleaved ? int64_t{blockIdx.x} * kBlock : share * blockIdx.x;
  const int64_t end = kInterleaved || first + share > count ? count : first + share;
  int64_t i = first + threadIdx.x;
  unsigned bits = 0;
  // Without a condition for each load, which would keep them from being in flight together.
  for (; i + (kInFlight - 1) * step < end; i += kInFlight * step) {
    uint4 v[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) v[j] = LoadOnce(data + i + j * step);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) bits ^= Bits(v[j]);
  }
  for (; i < end; i += step) bits ^= Bits(LoadOnce(data + i));
  if (bits == 0x2f1e3d4cu) *sink = bits;  // so that nothing is left out; hardly ever done
}

struct Way {
  void (*kernel)(const uint4*, int64_t, unsigned*);
  int blocks_of_multiprocessor;
};

template <int kInFlight, int kBlocks, bool kInterleaved>
constexpr Way kWay{ReadKernel<kInFlight, kBlocks, kInterleaved>, kBlocks};

// Eight blocks leave a thread 32 registers: room for four loads in flight, not for eight.
const Way kWays[] = {kWay<4, 8, false>, kWay<4, 8, true>, kWay<8, 4, false>, kWay<8, 4, true>};

}  // namespace

// The number of ways.
extern "C" __attribute__((visibility("default"))) int fuseblock_read_ways() {
  return static_cast<int>(sizeof(kWays) / sizeof(kWays[0]));
}

// Reads `bytes`, a multiple of 16, once, in way `way`. sink: a word of device memory. Returns a
// cudaError_t.
extern "C" __attribute__((visibility("default"))) int fuseblock_read(const void* data,
                                                                     int64_t bytes, int way,
                                                                     void* sink, void* stream) {
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) return error;
  const Way& as = kWays[way];
  as.kernel<<<multiprocessors * as.blocks_of_multiprocessor, kBlock, 0,
              static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(data), bytes / 16,
                                                   static_cast<unsigned*>(sink));
  return cudaGetLastError();
}
