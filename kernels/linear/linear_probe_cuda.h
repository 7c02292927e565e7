// Which cuBLASLt algorithms a product of one shape uses: pinned once per process, device and shape.
//
// y[M, N] = x[M, K] * W[N, K]^T is cuBLASLt's column-major D[N, M] = A^T[N, K] * B[K, M], A the
// weight. Algorithms are asked for without split along K and without workspace. One is pinned as
// the base: the first whose probe rows have the same bits alone, in batches of many sizes and at
// any position. For each range of M the library's preferred algorithm is pinned in its place only
// if it gives those same bits: so a row's bits do not depend on M, and few or many rows each have a
// fitting tile.
//
// FP32 products are made of segments along K, each added to the sum of those before it: a row's
// error stays that of a short chain, whatever K is.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/linear/cublaslt_cuda.h"

namespace fuseblock {

// M up to `rows`, by the algorithm that the library prefers at M = `typical`.
struct RowRange {
  int64_t rows, typical;
};
inline constexpr RowRange kRowRanges[] = {{32, 16}, {128, 96}, {512, 256}, {INT64_MAX, 4096}};
inline constexpr int kRowRangeCount = sizeof(kRowRanges) / sizeof(kRowRanges[0]);

// The product of one shape with outputs of one dtype.
struct PinnedProduct {
  bool usable = false;
  cudaDataType_t type, out_type;
  cublasLtMatmulAlgo_t algorithms[kRowRangeCount];
  int pinned_ranges = 0;  // of kRowRanges: with an algorithm other than the base's
};

struct PinnedProducts {
  const CublasLt* lt = nullptr;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  int64_t n = 0, k = 0;
  int segments = 1;          // of K: that many products, each added to the sum so far
  PinnedProduct same, wide;  // outputs in the weight's dtype, in FP32 (one where that is FP32 or
                             // where there are segments)
  char name[64] = "";
};

// *out is null when no algorithm can be had for that shape (no cuBLASLt, rows that are no multiple
// of 16 bytes, a probe that fails). Kept for the life of the process. Thread-safe.
cudaError_t PinProducts(int device, int dtype, int64_t n, int64_t k, int segments,
                        const PinnedProducts** out);

// The operands of a product, on 16-byte boundaries; strides in elements.
struct ProductOperands {
  const void* weight;
  const void* x;
  int64_t x_stride, rows;
  void* y;  // FP32 where there are segments
  int64_t y_stride;
  // Of y's dtype: y = add + the product, rounded once. Null: none. Not where there are segments
  // (cudaErrorInvalidValue).
  const void* add = nullptr;
  int64_t add_stride = 0;
};

cudaError_t Multiply(const PinnedProducts& products, const PinnedProduct& product,
                     const ProductOperands& operands, cudaStream_t stream);

}  // namespace fuseblock
