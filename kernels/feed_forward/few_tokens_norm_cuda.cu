// The first kernel of few_tokens_cuda.cu: the norm of the residual stream, as the products read it.
// A row's sum is rms_norm's, in its order.
#include "kernels/base/rms_norm.cuh"
#include "kernels/base/sum_source.cuh"
#include "kernels/feed_forward/few_tokens_stages.cuh"

namespace fuseblock {
namespace {

constexpr int kTileRowsBlock = 128;

// RmsPolicy with its result in tiles.
template <typename T>
struct TiledRmsPolicy : RmsPolicy<T, T, false> {
  using Base = RmsPolicy<T, T, false>;
  std::byte* tiles;
  int width;
  int64_t block_bytes;  // of `width` tokens

  template <bool kVector, bool kKept, int N, typename Left>
  __device__ void Write(float scale, const typename Base::template Columns<N>& w,
                        const float (&h)[N], int64_t row, int64_t col, Left left) const {
    static_assert(N == kChunk);
    // The base writes to its y + col.
    std::byte* to = tiles + row / width * block_bytes +
                    FewTokensPlan::ActivationOffset(width, row % width, col / kChunk);
    Base place = *this;
    place.y = reinterpret_cast<T*>(to) - col;
    place.template Write<kVector, kKept>(scale, w, h, 0, col, left);
  }
};

// The rows as they are, in tiles: a block for each row.
__global__ void __launch_bounds__(kTileRowsBlock)
    TileRowsKernel(const std::byte* x, int64_t stride_bytes, int64_t chunks, int width,
                   std::byte* tiles) {
  AwaitPredecessors();
  const int64_t row = blockIdx.x;
  tiles += row / width * width * chunks * 16;
  const auto* from = reinterpret_cast<const uint4*>(x + row * stride_bytes);
  for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += kTileRowsBlock) {
    std::byte* to = tiles + FewTokensPlan::ActivationOffset(width, row % width, chunk);
    *reinterpret_cast<uint4*>(to) = from[chunk];
  }
}

template <typename T>
cudaError_t LaunchNorm(const FuseblockFewTokens& args, cudaStream_t stream) {
  const FuseblockCudaRows& x = args.x;
  const int width = TileWidth(x.rows);
  auto* tiles = static_cast<std::byte*>(args.n);
  if (args.on_path == 0) {
    return LaunchOverlapped(
        TileRowsKernel, x.rows, dim3(kTileRowsBlock), stream, static_cast<const std::byte*>(x.data),
        x.stride * static_cast<int64_t>(sizeof(T)), x.cols / kChunk, width, tiles);
  }
  const TiledRmsPolicy<T> policy{{nullptr, 0, static_cast<const T*>(args.norm),
                                  1.0f / static_cast<float>(x.cols), args.eps, args.norm_offset},
                                 tiles,
                                 width,
                                 x.cols * width * static_cast<int64_t>(sizeof(T))};
  const RowsShape shape{x.rows, x.cols};
  if (args.residual.data == nullptr) {
    const PlainSource<T> source{static_cast<const T*>(x.data), x.stride};
    return LaunchByShape<true>(shape, source, policy, stream);
  }
  const SumSource<T> source{static_cast<const T*>(x.data),
                            static_cast<const T*>(args.residual.data), x.stride,
                            args.residual.stride};
  return LaunchByShape<true>(shape, source, policy, stream);
}

}  // namespace

cudaError_t LaunchFewTokensNorm(const FuseblockFewTokens& args, cudaStream_t stream) {
  if (args.x.dtype == static_cast<int>(DType::kF16)) return LaunchNorm<__half>(args, stream);
  return LaunchNorm<__nv_bfloat16>(args, stream);
}

}  // namespace fuseblock
