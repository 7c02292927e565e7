// The CUDA launcher of embedding (embedding.h): a gather of rows. A row goes by 16-byte pieces
// where table and y allow it, else by elements; with scale 1 the bits are copied untouched. A
// thread has one unit: two latencies, the id's and the row's, follow each other, and only many
// threads at once hide both.
#include "kernels/base/cuda_types.cuh"
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
