// What a launcher needs to start a kernel, and to know that it started.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace fuseblock {

// Starts kernel<<<grid, block, 0, stream>>>(args...) on the current device, which the host code has
// made the stream's (asking the stream would end a graph's capture), and returns that launch's own
// error (never one that an earlier call left behind). A grid of no blocks launches nothing; one
// beyond the hardware's 2^31 - 1 is cudaErrorInvalidValue.
template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), int64_t grid, dim3 block, cudaStream_t stream,
                   Args&&... args) {
  if (grid == 0) return cudaSuccess;
  if (grid < 0 || grid > INT32_MAX) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = block;
  config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  if (error != cudaSuccess) cudaGetLastError();  // not to be found by whoever asks next
  return error;
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace fuseblock
