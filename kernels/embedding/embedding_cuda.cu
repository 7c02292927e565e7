// The CUDA launcher of embedding (embedding.h): a gather of rows. A row goes by 16-byte pieces
// where table and y allow it, else by elements; with scale 1 the bits are copied untouched. A
// thread has one unit: two latencies, the id's and the row's, follow each other, and only many
// threads at once hide both.
#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/embedding/embedding_cuda.h"

namespace fuseblock {
namespace {

constexpr int kBlock = 256;
constexpr int kUnits = 1;  // of a thread

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
  const unsigned row_tile = p.column_tiles == gridDim.x ? 0 : blockIdx.x / p.column_tiles;
  const unsigned column_tile = blockIdx.x - row_tile * p.column_tiles;
  const int64_t row = static_cast<int64_t>(row_tile) * blockDim.y + threadIdx.y;
  if (row >= p.count) return;
  const int64_t id = static_cast<const Id*>(p.ids)[row];
  const bool padding = p.pads && id == p.padding_id;
  const T* from = table + id * p.table_stride;
  T* to = y + row * p.y_stride;
  const int64_t first = static_cast<int64_t>(column_tile) * kUnits * blockDim.x + threadIdx.x;
  Unit<T, N> unit[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t col = (first + u * static_cast<int64_t>(blockDim.x)) * N;
    if (col >= p.cols) continue;
    if (padding) {
      unit[u].LoadSome(from, 0);  // zeros
    } else {
      unit[u].LoadAligned(from + col);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t col = (first + u * static_cast<int64_t>(blockDim.x)) * N;
    if (col >= p.cols) continue;
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        unit[u].v[i] = FromFloat<T>(ToFloat(unit[u].v[i]) * p.scale);
      }
    }
    unit[u].StoreAligned(to + col);
  }
}

template <typename T, typename Id, int N>
cudaError_t LaunchWidth(EmbeddingParams p, const FuseblockCudaRows& table,
                        const FuseblockCudaRows& y, cudaStream_t stream) {
  const int64_t units = p.cols / N;  // N divides cols, or is 1
  unsigned lanes = kBlock;
  while (lanes > 1 && lanes / 2 * kUnits >= units) lanes /= 2;
  const int64_t column_tiles = CeilDiv(units, static_cast<int64_t>(lanes) * kUnits);
  const dim3 block(lanes, kBlock / lanes);
  if (column_tiles > INT32_MAX) return cudaErrorInvalidValue;
  p.column_tiles = static_cast<unsigned>(column_tiles);
  const int64_t blocks = column_tiles * CeilDiv(p.count, block.y);
  const auto* from = static_cast<const T*>(table.data);
  auto* to = static_cast<T*>(y.data);
  if (p.scale == 1.0f) {
    return LaunchOverlapped(EmbeddingKernel<T, Id, N, false>, blocks, block, stream, p, from, to);
  }
  return LaunchOverlapped(EmbeddingKernel<T, Id, N, true>, blocks, block, stream, p, from, to);
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
