// Element-wise kernels of one or two inputs over rows: out[r, c] = f(a[r, c], b[r, c]), computed in
// FP32 and rounded once to Out.
//
// A thread has one unit, 16 bytes of the narrowest operand. Dense operands are one long row of
// whole units; what is not (rows of a wider tensor, a length of no whole number of units, an
// address off 16 bytes) goes by rows (tiles.cuh). In place is safe: a thread has loaded what it
// overwrites, and nobody else reads it.
#pragma once

#include "kernels/base/cuda_types.cuh"
#include "kernels/base/tiles.cuh"

namespace fuseblock {

constexpr int kElementwiseBlock = 256;

struct NoInput {};  // stands for the second input's type of a kernel that has one

// One unit of the operands, computed.
template <int N, typename Out, typename A, typename B, typename F>
__device__ Unit<Out, N> ApplyToUnit(const F& f, const Unit<A, N>& a, const Unit<B, N>& b) {
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = f(ToFloat(a.v[i]), ToFloat(b.v[i]));
  Unit<Out, N> out;
  out.SetRounded(values);
  return out;
}

template <int N, typename Out, typename A, typename F>
__device__ Unit<Out, N> ApplyToUnit(const F& f, const Unit<A, N>& a, const NoInput&) {
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = f(ToFloat(a.v[i]));
  Unit<Out, N> out;
  out.SetRounded(values);
  return out;
}

template <typename B, int N>
using SecondUnit = std::conditional_t<std::is_same_v<B, NoInput>, NoInput, Unit<B, N>>;

template <int N, typename Out, typename A, typename B, typename F>
__global__ void __launch_bounds__(kElementwiseBlock)
    ElementwiseDenseKernel(int64_t units, F f, Out* out, const A* a, const B* b) {
  AwaitPredecessors();
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kElementwiseBlock + threadIdx.x;
  if (unit >= units) return;
  Unit<A, N> in_a;
  SecondUnit<B, N> in_b;
  in_a.LoadAligned(a + unit * N);
  if constexpr (!std::is_same_v<B, NoInput>) in_b.LoadAligned(b + unit * N);
  ApplyToUnit<N, Out>(f, in_a, in_b).StoreAligned(out + unit * N);
}

struct ElementwiseGrid {
  int64_t rows, cols;
  unsigned column_tiles;  // blocks along a row
  bool aligned;
};

template <int N, typename Out, typename A, typename B, typename F>
__global__ void __launch_bounds__(kElementwiseBlock)
    ElementwiseRowsKernel(ElementwiseGrid grid, F f, Out* out, int64_t out_stride, const A* a,
                          int64_t a_stride, const B* b, int64_t b_stride) {
  AwaitPredecessors();
  constexpr bool kBinary = !std::is_same_v<B, NoInput>;
  const auto [row, unit] = PositionInTiles(grid.column_tiles);
  const int64_t col = unit * N;
  const int64_t count = grid.cols - col;
  if (row >= grid.rows || count <= 0) return;
  a += row * a_stride + col;
  out += row * out_stride + col;
  if constexpr (kBinary) b += row * b_stride + col;
  Unit<A, N> in_a;
  SecondUnit<B, N> in_b;
  if (grid.aligned && count >= N) {
    in_a.LoadAligned(a);
    if constexpr (kBinary) in_b.LoadAligned(b);
    ApplyToUnit<N, Out>(f, in_a, in_b).StoreAligned(out);
  } else {
    in_a.LoadSome(a, count);
    if constexpr (kBinary) in_b.LoadSome(b, count);
    ApplyToUnit<N, Out>(f, in_a, in_b).StoreSome(out, count);
  }
}

// a, b and out have one shape; b is null for one input (B = NoInput).
template <typename Out, typename A, typename B, typename F>
cudaError_t LaunchElementwise(F f, const FuseblockCudaRows& out, const FuseblockCudaRows& a,
                              const FuseblockCudaRows* b, cudaStream_t stream) {
  constexpr bool kAllFloat = std::is_same_v<Out, float> && std::is_same_v<A, float> &&
                             (std::is_same_v<B, NoInput> || std::is_same_v<B, float>);
  constexpr int N = kAllFloat ? 4 : 8;
  const bool dense = IsDense(out) && IsDense(a) && (b == nullptr || IsDense(*b));
  // A dense operand is one row, whose length the stride does not matter to.
  const auto aligned = [dense](const FuseblockCudaRows& rows) {
    return Aligned16(dense ? FuseblockCudaRows{rows.data, rows.dtype, 1, 0, 0} : rows);
  };
  ElementwiseGrid grid{out.rows, out.cols, 1,
                       aligned(out) && aligned(a) && (b == nullptr || aligned(*b))};
  if (grid.rows == 0 || grid.cols == 0) return cudaSuccess;
  if (dense) {
    grid.cols *= grid.rows;
    grid.rows = 1;
  }
  auto* to = static_cast<Out*>(out.data);
  const auto* from_a = static_cast<const A*>(a.data);
  const auto* from_b = static_cast<const B*>(b == nullptr ? nullptr : b->data);
  const int64_t units = CeilDiv(grid.cols, N);
  if (dense && grid.aligned && grid.cols % N == 0) {
    return LaunchOverlapped(ElementwiseDenseKernel<N, Out, A, B, F>,
                            CeilDiv(units, kElementwiseBlock), dim3(kElementwiseBlock), stream,
                            units, f, to, from_a, from_b);
  }
  const Tiles tiles = MakeTiles(grid.rows, units, kElementwiseBlock);
  grid.column_tiles = tiles.column_tiles;
  return LaunchOverlapped(ElementwiseRowsKernel<N, Out, A, B, F>, tiles.blocks, tiles.block, stream,
                          grid, f, to, out.stride, from_a, a.stride, from_b,
                          b == nullptr ? int64_t{0} : b->stride);
}

}  // namespace fuseblock
