// RMS normalisation of rows on the device, for rms_norm and add_rms_norm.
//
// A Source says where a row's values h come from: it loads units (cuda_types.cuh), turns them into
// FP32 and may store them on the way (residual_out). The row is read once: up to 16,384 columns it
// stays in registers, 32 elements a thread, a warp, 4, 8 or 16 warps a row; above that a block of
// 1,024 threads goes over it twice, the second time from the cache.
//
// The sum of squares: a thread's own elements in order by FMA, then as BlockReduce says. Which
// thread has which element depends on the number of columns and the source's type alone.
#pragma once

#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/base/reduce.cuh"

namespace fuseblock {

constexpr int kRowElements = 32;    // of a row in one thread's registers
constexpr int kWarpRowBlock = 256;  // threads of a block whose warps have a row each
constexpr int kLongRowBlock = 1024;

struct RmsRowsParams {
  int64_t rows, cols;
  int64_t y_stride;
  float eps, weight_offset;
  bool normalised_first;
  bool vector = false;  // everything is aligned and cols is a whole number of units
};

template <typename Y>
__device__ Y NormalisedValue(const RmsRowsParams& p, float h, float scale, float factor) {
  const float normalised = h * scale;
  return FromFloat<Y>((p.normalised_first ? RoundTo<Y>(normalised) : normalised) * factor);
}

__device__ inline float RmsScale(const RmsRowsParams& p, float sum_of_squares) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(p.cols) + p.eps);
}

template <typename Y, typename W, int N>
__device__ void StoreNormalised(const RmsRowsParams& p, const float (&h)[N], const Unit<W, N>& w,
                                bool weighted, float scale, Y* to, int64_t left) {
  Unit<Y, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float factor = weighted ? ToFloat(w.v[i]) + p.weight_offset : 1.0f;
    out.v[i] = NormalisedValue<Y>(p, h[i], scale, factor);
  }
  if (p.vector) {
    out.StoreAligned(to);
  } else {
    out.StoreSome(to, left);
  }
}

// kThreads of a block per row, the row in registers.
template <typename Source, typename Y, typename W, int kThreads>
__global__ void __launch_bounds__(kThreads == kWarp ? kWarpRowBlock : kThreads)
    RmsRowsKernel(RmsRowsParams p, Source source, const W* weight, Y* y) {
  constexpr int N = Source::kUnit;
  constexpr int kUnits = kRowElements / N;
  constexpr bool kWarpRow = kThreads == kWarp;
  const int64_t row =
      kWarpRow ? static_cast<int64_t>(blockIdx.x) * (kWarpRowBlock / kWarp) + threadIdx.x / kWarp
               : blockIdx.x;
  if (row >= p.rows) return;  // a whole warp, and only where no barrier follows
  const int lane = static_cast<int>(threadIdx.x) % kThreads;
  const int cols = static_cast<int>(p.cols);  // at most kThreads * kRowElements here
  source.SetRow(row);

  typename Source::Raw raw[kUnits];
  Unit<W, N> w[kUnits];
  const bool weighted = weight != nullptr;
  if (p.vector) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int col = (u * kThreads + lane) * N;
      if (col < cols) source.LoadAligned(raw[u], col);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int col = (u * kThreads + lane) * N;
      if (weighted && col < cols) w[u].LoadAligned(weight + col);
    }
  } else {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int col = (u * kThreads + lane) * N;
      if (col >= cols) continue;
      source.LoadSome(raw[u], col, cols - col);
      if (weighted) w[u].LoadSome(weight + col, cols - col);
    }
  }

  float h[kUnits][N];
  float sum = 0.0f;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int col = (u * kThreads + lane) * N;
    if (col >= cols) continue;
    source.Values(raw[u], h[u]);
    source.Store(h[u], col, cols - col, p.vector);
#pragma unroll
    for (int i = 0; i < N; ++i) sum = __fmaf_rn(h[u][i], h[u][i], sum);
  }
  if constexpr (kWarpRow) {
    sum = WarpReduce(sum, Sum());
  } else {
    __shared__ float scratch[kReduceScratch];
    sum = BlockReduce(sum, Sum(), scratch);
  }
  const float scale = RmsScale(p, sum);
  y += row * p.y_stride;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int col = (u * kThreads + lane) * N;
    if (col < cols) {
      StoreNormalised<Y, W, N>(p, h[u], w[u], weighted, scale, y + col, cols - col);
    }
  }
}

// Any number of columns: the row is loaded once for its sum and once more for its output. Only the
// second round stores, each unit after it is loaded, so that in place is safe.
template <typename Source, typename Y, typename W>
__global__ void __launch_bounds__(kLongRowBlock)
    RmsLongRowsKernel(RmsRowsParams p, Source source, const W* weight, Y* y) {
  constexpr int N = Source::kUnit;
  __shared__ float scratch[kReduceScratch];
  source.SetRow(blockIdx.x);
  y += blockIdx.x * p.y_stride;
  const auto load = [&](int64_t col, float(&h)[N]) {
    typename Source::Raw raw;
    if (p.vector) {
      source.LoadAligned(raw, col);
    } else {
      source.LoadSome(raw, col, p.cols - col);
    }
    source.Values(raw, h);
  };
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  constexpr int64_t kStep = static_cast<int64_t>(kLongRowBlock) * N;
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t col = first; col < p.cols; col += kStep) {
    float h[N];
    load(col, h);
#pragma unroll
    for (int i = 0; i < N; ++i) sum = __fmaf_rn(h[i], h[i], sum);
  }
  const float scale = RmsScale(p, BlockReduce(sum, Sum(), scratch));
  const bool weighted = weight != nullptr;
#pragma unroll 2
  for (int64_t col = first; col < p.cols; col += kStep) {
    float h[N];
    load(col, h);
    Unit<W, N> w;
    if (weighted) {
      if (p.vector) {
        w.LoadAligned(weight + col);
      } else {
        w.LoadSome(weight + col, p.cols - col);
      }
    }
    source.Store(h, col, p.cols - col, p.vector);
    StoreNormalised<Y, W, N>(p, h, w, weighted, scale, y + col, p.cols - col);
  }
}

template <typename Y, typename W, typename Source>
cudaError_t LaunchRmsRows(const RmsRowsParams& p, const Source& source, const W* weight, Y* y,
                          cudaStream_t stream) {
  if (p.rows == 0 || p.cols == 0) return cudaSuccess;
  // By the number of columns alone: it decides the order of summation.
  if (p.cols <= kWarp * kRowElements) {
    return Launch(RmsRowsKernel<Source, Y, W, kWarp>, CeilDiv(p.rows, kWarpRowBlock / kWarp),
                  dim3(kWarpRowBlock), stream, p, source, weight, y);
  }
  if (p.cols <= 128 * kRowElements) {
    return Launch(RmsRowsKernel<Source, Y, W, 128>, p.rows, dim3(128), stream, p, source, weight,
                  y);
  }
  if (p.cols <= 256 * kRowElements) {
    return Launch(RmsRowsKernel<Source, Y, W, 256>, p.rows, dim3(256), stream, p, source, weight,
                  y);
  }
  if (p.cols <= 512 * kRowElements) {
    return Launch(RmsRowsKernel<Source, Y, W, 512>, p.rows, dim3(512), stream, p, source, weight,
                  y);
  }
  return Launch(RmsLongRowsKernel<Source, Y, W>, p.rows, dim3(kLongRowBlock), stream, p, source,
                weight, y);
}

}  // namespace fuseblock
