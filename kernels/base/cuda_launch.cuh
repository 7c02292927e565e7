// What a launcher needs to start a kernel: the stream's device made current, the launch checked.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace fuseblock {

// Makes the stream's device the calling thread's current one. The default stream names none: the
// current device is kept, and so it is for a handle that is no stream, which the launch will
// refuse.
inline cudaError_t UseDeviceOf(cudaStream_t stream) {
  int device = 0;
  int current = 0;
  if (stream == nullptr) return cudaSuccess;
  if (cudaStreamGetDevice(stream, &device) != cudaSuccess) {
    cudaGetLastError();
    return cudaSuccess;
  }
  const cudaError_t error = cudaGetDevice(&current);
  return error == cudaSuccess && device != current ? cudaSetDevice(device) : error;
}

// Starts kernel<<<grid, block, 0, stream>>>(args...) and returns that launch's own error (never one
// that an earlier call left behind). A grid of no blocks launches nothing; one beyond the
// hardware's 2^31 - 1 is cudaErrorInvalidValue.
template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), int64_t grid, dim3 block, cudaStream_t stream,
                   Args&&... args) {
  if (grid == 0) return cudaSuccess;
  if (grid < 0 || grid > INT32_MAX) return cudaErrorInvalidValue;
  cudaError_t error = UseDeviceOf(stream);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = block;
  config.stream = stream;
  error = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  if (error != cudaSuccess) cudaGetLastError();  // not to be found by whoever asks next
  return error;
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace fuseblock
