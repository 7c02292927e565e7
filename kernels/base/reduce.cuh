// Reductions over a warp and over a block: sum, and a maximum that propagates NaN.
//
// WarpReduce: `lanes` (1..32) is how many lanes of the warp exist or hold a value, the first ones;
// exactly those call it, and all of them get the result.
// BlockReduce: every thread of a one-dimensional block of 1..1024 threads calls it, a multiple of
// 32 or not, and gets the result. `scratch` is shared memory for kReduceScratch floats; it may be
// used again in the next call at once. The order of the additions depends on `lanes` and the
// block's size alone: as a tree in the warp, then the warps' sums first to last.
#pragma once

#include <cuda_runtime.h>

namespace fuseblock {

constexpr int kWarp = 32;
constexpr int kReduceScratch = 32;

struct Sum {
  static __device__ float Identity() { return 0.0f; }
  __device__ float operator()(float a, float b) const { return a + b; }
};

struct Max {
  static __device__ float Identity() { return -__int_as_float(0x7f800000); }
  // fmaxf would drop a NaN.
  __device__ float operator()(float a, float b) const {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
};

template <typename Op>
__device__ float WarpReduce(float value, Op op, int lanes = kWarp) {
  if (lanes == kWarp) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
  }
  // Absent lanes answer nothing that may be used: reduce into lane 0, then hand the result out.
  const unsigned mask = (1u << lanes) - 1u;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = __shfl_down_sync(mask, value, offset);
    if (lane + offset < lanes) value = op(value, other);
  }
  return __shfl_sync(mask, value, 0);
}

template <typename Op>
__device__ float BlockReduce(float value, Op op, float* scratch) {
  const int threads = static_cast<int>(blockDim.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int left = threads - warp * kWarp;
  value = WarpReduce(value, op, left < kWarp ? left : kWarp);
  __syncthreads();  // an earlier call's readers are done with the scratch
  if (threadIdx.x % kWarp == 0) scratch[warp] = value;
  __syncthreads();
  const int warps = (threads + kWarp - 1) / kWarp;
  value = scratch[0];
  for (int i = 1; i < warps; ++i) value = op(value, scratch[i]);
  return value;
}

}  // namespace fuseblock
