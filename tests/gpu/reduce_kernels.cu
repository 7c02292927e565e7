// Kernels around the reductions, for reduce_test.cc.
#include <cstdio>
#include <cstdlib>

#include "kernels/base/reduce.cuh"
#include "tests/gpu/reduce_kernels.h"

namespace fuseblock::testing {
namespace {

template <typename Op>
__global__ void WarpKernel(const float* values, int lanes, float* results) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < lanes) results[lane] = WarpReduce(values[lane], Op(), lanes);
}

template <typename Op>
__global__ void BlockKernel(const float* values, float* results) {
  __shared__ float scratch[kReduceScratch];
  const float value = values[threadIdx.x];
  const float first = BlockReduce(value, Op(), scratch);
  const float second = BlockReduce(value * value, Op(), scratch);
  results[2 * threadIdx.x] = first;
  results[2 * threadIdx.x + 1] = second;
}

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
  std::exit(1);
}

// Copies values to the device, launches, copies `results` floats back.
template <typename Launch>
std::vector<float> OnDevice(const std::vector<float>& values, size_t results, Launch&& launch) {
  float* device_values = nullptr;
  float* device_results = nullptr;
  Check(cudaMalloc(&device_values, values.size() * sizeof(float)));
  Check(cudaMalloc(&device_results, results * sizeof(float)));
  Check(cudaMemcpy(device_values, values.data(), values.size() * sizeof(float),
                   cudaMemcpyHostToDevice));
  launch(device_values, device_results);
  Check(cudaGetLastError());
  std::vector<float> out(results);
  Check(cudaMemcpy(out.data(), device_results, results * sizeof(float), cudaMemcpyDeviceToHost));
  Check(cudaFree(device_values));
  Check(cudaFree(device_results));
  return out;
}

}  // namespace

std::vector<float> RunWarpReduce(ReduceOp op, const std::vector<float>& values) {
  const int lanes = static_cast<int>(values.size());
  return OnDevice(values, values.size(), [&](const float* in, float* out) {
    if (op == ReduceOp::kSum) {
      WarpKernel<Sum><<<1, kWarp>>>(in, lanes, out);
    } else {
      WarpKernel<Max><<<1, kWarp>>>(in, lanes, out);
    }
  });
}

std::vector<float> RunBlockReduceTwice(ReduceOp op, const std::vector<float>& values) {
  const int threads = static_cast<int>(values.size());
  return OnDevice(values, 2 * values.size(), [&](const float* in, float* out) {
    if (op == ReduceOp::kSum) {
      BlockKernel<Sum><<<1, threads>>>(in, out);
    } else {
      BlockKernel<Max><<<1, threads>>>(in, out);
    }
  });
}

}  // namespace fuseblock::testing
