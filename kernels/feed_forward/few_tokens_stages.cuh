// The three kernels of few_tokens_cuda.cu as launches, each in the file of its name.
#pragma once

#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/feed_forward/few_tokens_cuda.h"

namespace fuseblock {

constexpr int kChunk = 8;  // elements of 16 bytes

// n = norm(x (+ residual)), or x where there is no norm, in tiles of TileWidth tokens.
cudaError_t LaunchFewTokensNorm(const FuseblockFewTokens& args, cudaStream_t stream);
// The product that down reads, by a form: by blocks of `width` tokens, a tile's or half of them,
// or by the kernel for more than kFewTokensMax.
struct GateUpLaunch {
  cudaError_t (*few)(const FuseblockFewTokens& args, int width, cudaStream_t stream);
  cudaError_t (*many)(const FuseblockFewTokens& args, cudaStream_t stream);
};
extern const GateUpLaunch kSwiGluLaunch, kGeGluTanhLaunch, kGeGluErfLaunch, kGeluTanhLaunch,
    kGeluErfLaunch;
// y = (x (+ residual) +) product * down^T (+ bias), by blocks of `width` tokens or by that kernel.
cudaError_t LaunchFewTokensDown(const FuseblockFewTokens& args, int width, cudaStream_t stream);
cudaError_t LaunchManyTokensDown(const FuseblockFewTokens& args, cudaStream_t stream);
// The third by the library's product, from a gated product in rows.
cudaError_t LaunchLibraryDown(const FuseblockFewTokens& args, cudaStream_t stream);

// A block for each share of the weights and each `width` tokens.
inline dim3 FewTokensGrid(const FuseblockFewTokens& args, int shares, int width) {
  return dim3(static_cast<unsigned>(shares),
              static_cast<unsigned>(TokenBlocks(args.x.rows, width)));
}

// Calls f(T{}, width as an integral constant); cudaErrorInvalidValue for another dtype or width.
template <typename F>
cudaError_t VisitFewTokens(int dtype, int width, F&& f) {
  const auto visit = [&](auto value) {
    switch (width) {
      case 8:
        return f(value, std::integral_constant<int, 8>());
      case 16:
        return f(value, std::integral_constant<int, 16>());
      case 32:
        return f(value, std::integral_constant<int, 32>());
      case 64:
        return f(value, std::integral_constant<int, 64>());
      case 128:
        return f(value, std::integral_constant<int, 128>());
      default:
        return cudaErrorInvalidValue;
    }
  };
  switch (static_cast<DType>(dtype)) {
    case DType::kF16:
      return visit(__half{});
    case DType::kBF16:
      return visit(__nv_bfloat16{});
    default:
      return cudaErrorInvalidValue;
  }
}

// Starts a kernel that streams weights: with that much shared memory, in clusters of `cluster`,
// before its predecessor has ended.
template <typename Params>
cudaError_t LaunchStreaming(void (*kernel)(Params), dim3 grid, int threads, int shared_bytes,
                            int cluster, cudaStream_t stream, const Params& params) {
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error == cudaSuccess) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    error = cudaLaunchKernelEx(&config, kernel, params);
  }
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace fuseblock
