// The CUDA launcher of embedding (embedding.h): a gather of rows. With scale 1 the bits are copied
// untouched.
//
// Two latencies, the id's and the row's, follow each other, and only much in flight hides both.
// Many long rows go through shared memory by bulk copies, 4 KiB a block of one warp (Hopper on).
// Else a thread has one unit: 16 bytes where table and y allow it, or an element.
#include "kernels/base/cuda_types.cuh"
#include "kernels/base/hopper.cuh"
#include "kernels/base/reduce.cuh"
#include "kernels/base/tiles.cuh"
#include "kernels/embedding/embedding_cuda.h"

namespace fuseblock {
namespace {

constexpr int kBlock = 256;

struct EmbeddingParams {
  const void* ids;
  int64_t count, cols;
  int64_t table_stride, y_stride;
  float scale;
  bool pads;
  int64_t padding_id;
  unsigned column_tiles;
};

template <typename T, typename Id, int N, bool kScaled>
__global__ void __launch_bounds__(kBlock) EmbeddingKernel(EmbeddingParams p, const T* table, T* y) {
  AwaitPredecessors();
  const auto [row, unit] = PositionInTiles(p.column_tiles);
  const int64_t col = unit * N;
  if (row >= p.count || col >= p.cols) return;
  const int64_t id = static_cast<const Id*>(p.ids)[row];
  Unit<T, N> values;
  if (p.pads && id == p.padding_id) {
    values.LoadSome(table, 0);  // zeros
  } else {
    values.LoadAligned(table + id * p.table_stride + col);
  }
  if constexpr (kScaled) {
#pragma unroll
    for (int i = 0; i < N; ++i) values.v[i] = FromFloat<T>(ToFloat(values.v[i]) * p.scale);
  }
  values.StoreAligned(y + row * p.y_stride + col);
}

constexpr int kChunk = 4096;  // bytes of a row that a block copies
constexpr int64_t kChunksMin = 4096;

// One warp for each chunk of each row; rows lie on 16-byte boundaries and are whole multiples.
template <typename T, typename Id>
__global__ void __launch_bounds__(kWarp)
    EmbeddingChunksKernel(EmbeddingParams p, const T* table, T* y) {
#if __CUDA_ARCH__ >= 900
  AwaitPredecessors();
  __shared__ alignas(128) std::byte chunk[kChunk];
  __shared__ uint64_t loaded;
  constexpr int kElements = kChunk / sizeof(T);
  const int64_t row = blockIdx.x / p.column_tiles;
  const int64_t col = static_cast<int64_t>(blockIdx.x % p.column_tiles) * kElements;
  const int count = static_cast<int>(p.cols - col < kElements ? p.cols - col : kElements);
  T* to = y + row * p.y_stride + col;
  const int64_t id = static_cast<const Id*>(p.ids)[row];
  if (p.pads && id == p.padding_id) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarp) to[i] = FromFloat<T>(0.0f);
    return;
  }
  if (threadIdx.x != 0) return;
  const uint32_t bytes = static_cast<uint32_t>(count) * sizeof(T);
  const uint32_t barrier = SharedAddress(&loaded);
  const uint32_t shared = SharedAddress(chunk);
  hopper::BarrierInit(barrier, 1);
  hopper::FenceBarrierInit();
  hopper::BarrierExpect(barrier, bytes);
  hopper::BulkCopy(shared, table + id * p.table_stride + col, bytes, barrier);
  hopper::BarrierWait(barrier, 0);
  hopper::BulkStore(to, shared, bytes);
#endif
}

template <typename T, typename Id, int N>
cudaError_t LaunchWidth(EmbeddingParams p, const FuseblockCudaRows& table,
                        const FuseblockCudaRows& y, cudaStream_t stream) {
  const Tiles tiles = MakeTiles(p.count, p.cols / N, kBlock);  // N divides cols, or is 1
  p.column_tiles = tiles.column_tiles;
  const auto* from = static_cast<const T*>(table.data);
  auto* to = static_cast<T*>(y.data);
  if (p.scale == 1.0f) {
    return LaunchOverlapped(EmbeddingKernel<T, Id, N, false>, tiles.blocks, tiles.block, stream, p,
                            from, to);
  }
  return LaunchOverlapped(EmbeddingKernel<T, Id, N, true>, tiles.blocks, tiles.block, stream, p,
                          from, to);
}

template <typename T, typename Id>
cudaError_t LaunchTyped(const EmbeddingParams& p, const FuseblockCudaRows& table,
                        const FuseblockCudaRows& y, cudaStream_t stream) {
  constexpr int kWide = 16 / sizeof(T);
  if (Aligned16(table) && Aligned16(y) && p.cols % kWide == 0) {
    const int64_t chunks = CeilDiv(p.cols * static_cast<int64_t>(sizeof(T)), int64_t{kChunk});
    if (p.scale == 1.0f && p.count * chunks >= kChunksMin && CanOverlapLaunches()) {
      EmbeddingParams by_chunks = p;
      by_chunks.column_tiles = static_cast<unsigned>(chunks);
      return LaunchOverlapped(EmbeddingChunksKernel<T, Id>, p.count * chunks, dim3(kWarp), stream,
                              by_chunks, static_cast<const T*>(table.data),
                              static_cast<T*>(y.data));
    }
    return LaunchWidth<T, Id, kWide>(p, table, y, stream);
  }
  return LaunchWidth<T, Id, 1>(p, table, y, stream);
}

}  // namespace

int LaunchEmbedding(const void* ids, int ids_dtype, int64_t count, const FuseblockCudaRows* table,
                    float scale, const int64_t* padding_id, const FuseblockCudaRows* y,
                    void* stream) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (table->dtype != y->dtype) return cudaErrorInvalidValue;
  if (count == 0 || table->cols == 0) return cudaSuccess;
  EmbeddingParams p{ids, count, table->cols, table->stride, y->stride, scale, false, 0, 1};
  if (padding_id != nullptr) {
    p.pads = true;
    p.padding_id = *padding_id;
  }
  return VisitCudaFloat(y->dtype, [&](auto value) {
    using T = decltype(value);
    switch (static_cast<DType>(ids_dtype)) {
      case DType::kI32:
        return LaunchTyped<T, int32_t>(p, *table, *y, cuda_stream);
      case DType::kI64:
        return LaunchTyped<T, int64_t>(p, *table, *y, cuda_stream);
      default:
        return cudaErrorInvalidValue;
    }
  });
}

}  // namespace fuseblock
