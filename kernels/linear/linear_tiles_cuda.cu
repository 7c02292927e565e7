// Tiles of 64 x 64 outputs in shared memory, 4 x 4 a thread, FP32 FMA along K; see the header.
#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/base/gelu.cuh"
#include "kernels/linear/linear_tiles_cuda.h"

namespace fuseblock {
namespace {

constexpr int kTile = 64;      // outputs along M and along N of a block
constexpr int kDepth = 16;     // of K in shared memory at a time
constexpr int kSegment = 64;   // of K summed before it is added to the total
constexpr int kPerThread = 4;  // outputs along M and along N of a thread
constexpr int kBlock = 256;
constexpr int kPitch = kTile + 4;  // keeps float4 aligned and spreads the banks

struct TilesParams {
  int64_t m, n, k;
  int64_t x_stride, y_stride;
  int64_t n_tiles;
  LinearEpilogue epilogue;
};

// An FP32 sum as a tensor of Out takes it.
template <typename Out>
__device__ Out Finished(float sum, LinearEpilogue epilogue) {
  if (epilogue == LinearEpilogue::kGeluErf) sum = GeluFor<Out, GeluForm::kErf>(sum);
  if (epilogue == LinearEpilogue::kGeluTanh) sum = GeluFor<Out, GeluForm::kTanh>(sum);
  return FromFloat<Out>(sum);
}

// Four neighbouring elements of a row's K, zeros outside, into their columns of a tile.
template <typename T>
__device__ void LoadColumns(float (*tile)[kPitch], const T* data, int64_t stride, int64_t rows,
                            int64_t first_row, int64_t k, int64_t first_k) {
  const int row = static_cast<int>(threadIdx.x) / 4;
  const int column = static_cast<int>(threadIdx.x) % 4 * 4;
  const bool inside = first_row + row < rows;
  const T* from = data + (first_row + row) * stride + first_k + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    tile[column + i][row] = inside && first_k + column + i < k ? ToFloat(from[i]) : 0.0f;
  }
}

template <typename T, typename Out>
__global__ void __launch_bounds__(kBlock)
    LinearTilesKernel(TilesParams p, const T* x, const T* weight, const float* bias, Out* y) {
  static_assert(kBlock * 4 == kTile * kDepth && kBlock * kPerThread * kPerThread == kTile * kTile);
  __shared__ alignas(16) float x_tile[kDepth][kPitch];
  __shared__ alignas(16) float w_tile[kDepth][kPitch];
  const int64_t first_m = blockIdx.x / p.n_tiles * kTile;
  const int64_t first_n = blockIdx.x % p.n_tiles * kTile;
  const int tm = static_cast<int>(threadIdx.x) / (kTile / kPerThread) * kPerThread;
  const int tn = static_cast<int>(threadIdx.x) % (kTile / kPerThread) * kPerThread;

  float total[kPerThread][kPerThread] = {};
  for (int64_t segment = 0; segment < p.k; segment += kSegment) {
    float sum[kPerThread][kPerThread] = {};
    for (int64_t k = segment; k < segment + kSegment && k < p.k; k += kDepth) {
      __syncthreads();  // the last tiles have been read
      LoadColumns(x_tile, x, p.x_stride, p.m, first_m, p.k, k);
      LoadColumns(w_tile, weight, p.k, p.n, first_n, p.k, k);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        const float4 a = *reinterpret_cast<const float4*>(&x_tile[i][tm]);
        const float4 b = *reinterpret_cast<const float4*>(&w_tile[i][tn]);
        const float a_values[kPerThread] = {a.x, a.y, a.z, a.w};
        const float b_values[kPerThread] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int r = 0; r < kPerThread; ++r) {
#pragma unroll
          for (int c = 0; c < kPerThread; ++c) {
            sum[r][c] = __fmaf_rn(a_values[r], b_values[c], sum[r][c]);
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kPerThread; ++r) {
#pragma unroll
      for (int c = 0; c < kPerThread; ++c) total[r][c] += sum[r][c];
    }
  }
#pragma unroll
  for (int r = 0; r < kPerThread; ++r) {
#pragma unroll
    for (int c = 0; c < kPerThread; ++c) {
      const int64_t row = first_m + tm + r;
      const int64_t col = first_n + tn + c;
      if (row >= p.m || col >= p.n) continue;
      const float value = bias == nullptr ? total[r][c] : total[r][c] + bias[col];
      y[row * p.y_stride + col] = Finished<Out>(value, p.epilogue);
    }
  }
}

struct EpilogueParams {
  int64_t rows, cols;
  int64_t x_stride, y_stride;
  int64_t column_tiles;
  LinearEpilogue epilogue;
};

// A thread has N columns: 4 where all operands are aligned, else 1.
template <typename Out, int N>
__global__ void __launch_bounds__(kBlock)
    EpilogueKernel(EpilogueParams p, const float* x, const float* bias, Out* y) {
  const int64_t row = blockIdx.x / p.column_tiles;
  const int64_t col = (blockIdx.x % p.column_tiles * kBlock + threadIdx.x) * N;
  if (row >= p.rows || col >= p.cols) return;
  Unit<float, N> sum, add;
  sum.LoadAligned(x + row * p.x_stride + col);
  if (bias != nullptr) add.LoadAligned(bias + col);
  Unit<Out, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float value = bias != nullptr ? sum.v[i] + add.v[i] : sum.v[i];
    out.v[i] = Finished<Out>(value, p.epilogue);
  }
  out.StoreAligned(y + row * p.y_stride + col);
}

template <typename Out, int N>
cudaError_t LaunchEpilogueOf(const FuseblockCudaRows& x, const float* bias,
                             const FuseblockCudaRows& y, LinearEpilogue epilogue,
                             cudaStream_t stream) {
  const int64_t tiles = CeilDiv(x.cols, int64_t{kBlock} * N);
  const EpilogueParams p{x.rows, x.cols, x.stride, y.stride, tiles, epilogue};
  return Launch(EpilogueKernel<Out, N>, x.rows * tiles, dim3(kBlock), stream, p,
                static_cast<const float*>(x.data), bias, static_cast<Out*>(y.data));
}

}  // namespace

cudaError_t LaunchLinearTiles(const FuseblockCudaRows& x, const void* weight, const float* bias,
                              const FuseblockCudaRows& y, LinearEpilogue epilogue,
                              cudaStream_t stream) {
  const TilesParams p{x.rows,  y.cols, x.cols, x.stride, y.stride, CeilDiv(y.cols, int64_t{kTile}),
                      epilogue};
  return VisitCudaFloat(x.dtype, [&](auto in) {
    return VisitSameOrFloat(in, x.dtype, y.dtype, [&](auto out) {
      using T = decltype(in);
      using Out = decltype(out);
      return Launch(LinearTilesKernel<T, Out>, CeilDiv(p.m, kTile) * p.n_tiles, dim3(kBlock),
                    stream, p, static_cast<const T*>(x.data), static_cast<const T*>(weight), bias,
                    static_cast<Out*>(y.data));
    });
  });
}

cudaError_t LaunchEpilogue(const FuseblockCudaRows& x, const float* bias,
                           const FuseblockCudaRows& y, LinearEpilogue epilogue,
                           cudaStream_t stream) {
  const bool wide = x.cols % 4 == 0 && Aligned16(x) && Aligned16(y) &&
                    Aligned16(bias, 1, 0, static_cast<int>(sizeof(float)));
  return VisitCudaFloat(y.dtype, [&](auto out) {
    using Out = decltype(out);
    return wide ? LaunchEpilogueOf<Out, 4>(x, bias, y, epilogue, stream)
                : LaunchEpilogueOf<Out, 1>(x, bias, y, epilogue, stream);
  });
}

}  // namespace fuseblock
