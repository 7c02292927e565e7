// Element-wise kernels of one or two inputs over rows: out[r, c] = f(a[r, c], b[r, c]), computed in
// FP32 and rounded once to Out.
//
// Dense operands are one long row. A block covers `lanes` units across and kBlock / lanes rows, so
// that short rows still fill it; a thread has four 16-byte loads in flight before it computes.
// In place is safe: a thread has loaded what it overwrites, and nobody else reads it.
#pragma once

#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"

namespace fuseblock {

constexpr int kElementwiseBlock = 256;

struct ElementwiseGrid {
  int64_t rows, cols;
  unsigned column_tiles;  // blocks along a row
  bool aligned;
};

struct NoInput {};  // stands for the second input's type of a kernel that has one

template <int N, int kUnits, typename Out, typename A, typename B, typename F>
__global__ void __launch_bounds__(kElementwiseBlock)
    ElementwiseKernel(ElementwiseGrid grid, F f, Out* out, int64_t out_stride, const A* a,
                      int64_t a_stride, const B* b, int64_t b_stride) {
  constexpr bool kBinary = !std::is_same_v<B, NoInput>;
  using InB = std::conditional_t<kBinary, B, A>;
  const unsigned row_tile = grid.column_tiles == gridDim.x ? 0 : blockIdx.x / grid.column_tiles;
  const unsigned column_tile = blockIdx.x - row_tile * grid.column_tiles;
  const int64_t row = static_cast<int64_t>(row_tile) * blockDim.y + threadIdx.y;
  if (row >= grid.rows) return;
  const int64_t first = static_cast<int64_t>(column_tile) * kUnits * blockDim.x + threadIdx.x;
  out += row * out_stride;
  a += row * a_stride;
  if constexpr (kBinary) b += row * b_stride;

  Unit<A, N> in_a[kUnits];
  Unit<InB, N> in_b[kUnits];
  const auto compute = [&](int u) {
    Unit<Out, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kBinary) {
        result.v[i] = FromFloat<Out>(f(ToFloat(in_a[u].v[i]), ToFloat(in_b[u].v[i])));
      } else {
        result.v[i] = FromFloat<Out>(f(ToFloat(in_a[u].v[i])));
      }
    }
    return result;
  };
  const int64_t last_end = (first + static_cast<int64_t>(kUnits - 1) * blockDim.x + 1) * N;
  if (grid.aligned && last_end <= grid.cols) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int64_t col = (first + u * static_cast<int64_t>(blockDim.x)) * N;
      in_a[u].LoadAligned(a + col);
      if constexpr (kBinary) in_b[u].LoadAligned(b + col);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      compute(u).StoreAligned(out + (first + u * static_cast<int64_t>(blockDim.x)) * N);
    }
    return;
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t col = (first + u * static_cast<int64_t>(blockDim.x)) * N;
    const int64_t count = grid.cols - col;
    if (count <= 0) return;
    in_a[u].LoadSome(a + col, count);
    if constexpr (kBinary) in_b[u].LoadSome(b + col, count);
    compute(u).StoreSome(out + col, count);
  }
}

// a, b and out have one shape; b is null for one input (B = NoInput).
template <typename Out, typename A, typename B, typename F>
cudaError_t LaunchElementwise(F f, const FuseblockCudaRows& out, const FuseblockCudaRows& a,
                              const FuseblockCudaRows* b, cudaStream_t stream) {
  constexpr bool kBinary = !std::is_same_v<B, NoInput>;
  constexpr bool kAllFloat = std::is_same_v<Out, float> && std::is_same_v<A, float> &&
                             (!kBinary || std::is_same_v<B, float>);
  constexpr int N = kAllFloat ? 4 : 8;
  constexpr int kUnits = kBinary ? 2 : 4;
  ElementwiseGrid grid{out.rows, out.cols, 1, Aligned16(out) && Aligned16(a)};
  bool dense = IsDense(out) && IsDense(a);
  if (b != nullptr) {
    grid.aligned = grid.aligned && Aligned16(*b);
    dense = dense && IsDense(*b);
  }
  if (grid.rows == 0 || grid.cols == 0) return cudaSuccess;
  if (dense) {
    grid.cols *= grid.rows;
    grid.rows = 1;
  }
  const int64_t units = CeilDiv(grid.cols, N);
  unsigned lanes = kElementwiseBlock;
  while (grid.rows > 1 && lanes > 1 && lanes / 2 * kUnits >= units) lanes /= 2;
  const int64_t column_tiles = CeilDiv(units, static_cast<int64_t>(lanes) * kUnits);
  const dim3 block(lanes, kElementwiseBlock / lanes);
  if (column_tiles > INT32_MAX) return cudaErrorInvalidValue;
  grid.column_tiles = static_cast<unsigned>(column_tiles);
  const int64_t blocks = column_tiles * CeilDiv(grid.rows, block.y);
  return Launch(ElementwiseKernel<N, kUnits, Out, A, B, F>, blocks, block, stream, grid, f,
                static_cast<Out*>(out.data), out.stride, static_cast<const A*>(a.data), a.stride,
                static_cast<const B*>(b == nullptr ? nullptr : b->data),
                b == nullptr ? int64_t{0} : b->stride);
}

}  // namespace fuseblock
