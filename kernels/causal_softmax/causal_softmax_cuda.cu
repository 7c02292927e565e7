// The CUDA launcher of causal_softmax (causal_softmax.h).
//
// A row's kept scores are read once: up to 16,384 keys they stay in registers, 8 to 32 a thread, by
// 1 to 16 warps a row; above that a block of 1,024 threads goes over them
// again, from the cache, for the sum and for the output. Units of columns that are masked as a
// whole are neither loaded nor computed: their zeros are stored while the others' loads are in
// flight. Rows are taken in an order that gives blocks that run at a time the same work.
#include <limits>

#include "kernels/base/causal.h"
#include "kernels/base/rows.cuh"
#include "kernels/base/softmax.cuh"
#include "kernels/causal_softmax/causal_softmax_cuda.h"

namespace fuseblock {
namespace {

constexpr int kThreadElements = 16;  // of a row in one thread's registers

struct CausalShape {
  int64_t rows, cols, queries;
  PowerScale scale;
};

// The row that comes in turn `index`, and how many keys it keeps.
struct CausalRow {
  int64_t row, kept;

  __device__ CausalRow(const CausalShape& shape, int64_t index) {
    // 64-bit division takes long; few tensors need it.
    const int64_t batch = shape.rows <= UINT32_MAX
                              ? static_cast<uint32_t>(index) / static_cast<uint32_t>(shape.queries)
                              : index / shape.queries;
    const int64_t first = batch * shape.queries;
    const int64_t query = CausalQueryInTurn(index - first, shape.queries);
    row = first + query;
    kept = CausalKept(query, shape.queries, shape.cols);
  }
};

// A loaded unit in FP32, -inf beyond the kept ones.
template <typename X, int N>
__device__ void KeptValues(const Unit<X, N>& raw, int64_t left, float (&h)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) h[i] = ToFloat(raw.v[i]);
  if (left >= N) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i >= left) h[i] = -std::numeric_limits<float>::infinity();
  }
}

template <bool kVector, typename Y, int N>
__device__ void StoreZeros(Y* to, int64_t left) {
  Unit<Y, N> zeros;
#pragma unroll
  for (int i = 0; i < N; ++i) zeros.v[i] = FromFloat<Y>(0.0f);
  zeros.template Store<kVector>(to, left);
}

// kept: elements of the unit that the row keeps, at least 1; left: columns up to its end.
template <bool kVector, typename Y, int N>
__device__ void StoreKept(const float (&power)[N], float inverse, int64_t kept, Y* to,
                          int64_t left) {
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = power[i] * inverse;
  Unit<Y, N> out;
  out.SetRounded(values);
  if (kept < N) {  // also of a row of NaNs
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= kept) out.v[i] = FromFloat<Y>(0.0f);
    }
  }
  out.template Store<kVector>(to, left);
}

// What the powers are of: the largest score, or 0 in a row without any but -inf.
__device__ inline float Largest(float max) {
  return max == -std::numeric_limits<float>::infinity() ? 0.0f : max;
}

// Such a row's powers are all 0, and so are its outputs.
__device__ inline float Inverse(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

template <int kThreads>
constexpr int kCausalBlock = kThreads == kWarp ? kWarpRowBlock : kThreads;

// kThreads of a block per row, the row in registers.
template <typename X, typename Y, int kThreads, int kElements, bool kVector>
__global__ void __launch_bounds__(kCausalBlock<kThreads>,
                                  (kElements * sizeof(X) > 64 ? 512 : 1024) /
                                      kCausalBlock<kThreads>)
    CausalRowsKernel(CausalShape shape, const X* x, int64_t x_stride, Y* y, int64_t y_stride) {
  AwaitPredecessors();
  constexpr int N = 16 / sizeof(X);
  constexpr int kUnits = kElements / N;
  constexpr int kWarps = kThreads / kWarp;
  __shared__ __align__(16) float scratch[2 * WarpResults<kWarps>::kRoom];
  const int64_t index =
      kThreads == kWarp
          ? static_cast<int64_t>(blockIdx.x) * (kWarpRowBlock / kWarp) + threadIdx.x / kWarp
          : blockIdx.x;
  if (index >= shape.rows) return;  // a whole warp, and only where no barrier follows
  const CausalRow row(shape, index);
  const int lane = static_cast<int>(threadIdx.x) % kThreads;
  const int kept = static_cast<int>(row.kept), cols = static_cast<int>(shape.cols);
  x += row.row * x_stride;
  y += row.row * y_stride;
  const auto column = [&](int u) { return (u * kThreads + lane) * N; };

  Unit<X, N> raw[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (column(u) < kept) raw[u].template Load<kVector>(x + column(u), kept - column(u));
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (column(u) >= kept && column(u) < cols) {
      StoreZeros<kVector, Y, N>(y + column(u), cols - column(u));
    }
  }

  float h[kUnits][N];
  float max[1] = {-std::numeric_limits<float>::infinity()};
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (column(u) >= kept) continue;
    KeptValues(raw[u], kept - column(u), h[u]);
#pragma unroll
    for (int i = 0; i < N; ++i) max[0] = Max()(max[0], h[u][i]);
  }
  RowReducer<kWarps> reduce{{scratch}};
  reduce(max, Max());
  const RowPowers<Y> power(shape.scale, Largest(max[0]));
  float sum[1] = {0.0f};
  const auto raise = [&](auto&& to_power) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (column(u) >= kept) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        h[u][i] = to_power(h[u][i]);
        sum[0] += h[u][i];
      }
    }
  };
  // One instruction less for each element of a usual row.
  if (power.near()) {
    raise([&](float value) { return power.Near(value); });
  } else {
    raise([&](float value) { return power(value); });
  }
  reduce(sum, Sum());
  const float inverse = Inverse(sum[0]);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (column(u) >= kept) continue;
    StoreKept<kVector>(h[u], inverse, kept - column(u), y + column(u), cols - column(u));
  }
}

// Any number of keys. Only the last pass stores, each unit after it is loaded, so that in place is
// safe.
template <typename X, typename Y, bool kVector>
__global__ void __launch_bounds__(kLongRowBlock)
    CausalLongRowsKernel(CausalShape shape, const X* x, int64_t x_stride, Y* y, int64_t y_stride) {
  AwaitPredecessors();
  constexpr int N = 16 / sizeof(X);
  constexpr int kWarps = kLongRowBlock / kWarp;
  constexpr int64_t kStep = static_cast<int64_t>(kLongRowBlock) * N;
  __shared__ __align__(16) float scratch[2 * kWarps];
  const CausalRow row(shape, blockIdx.x);
  x += row.row * x_stride;
  y += row.row * y_stride;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  const auto load = [&](int64_t col, float(&h)[N]) {
    Unit<X, N> raw;
    raw.template Load<kVector>(x + col, row.kept - col);
    KeptValues(raw, row.kept - col, h);
  };

  float max[1] = {-std::numeric_limits<float>::infinity()};
#pragma unroll 4
  for (int64_t col = first; col < row.kept; col += kStep) {
    float h[N];
    load(col, h);
#pragma unroll
    for (const float value : h) max[0] = Max()(max[0], value);
  }
  RowReducer<kWarps> reduce{{scratch}};
  reduce(max, Max());
  const RowPowers<Y> power(shape.scale, Largest(max[0]));
  float sum[1] = {0.0f};
#pragma unroll 4
  for (int64_t col = first; col < row.kept; col += kStep) {
    float h[N];
    load(col, h);
#pragma unroll
    for (const float value : h) sum[0] += power(value);
  }
  reduce(sum, Sum());
  const float inverse = Inverse(sum[0]);
  for (int64_t col = first; col < shape.cols; col += kStep) {
    if (col >= row.kept) {
      StoreZeros<kVector, Y, N>(y + col, shape.cols - col);
      continue;
    }
    float h[N];
    load(col, h);
#pragma unroll
    for (float& value : h) value = power(value);
    StoreKept<kVector>(h, inverse, row.kept - col, y + col, shape.cols - col);
  }
}

template <int kThreads, int kElements, bool kVector, typename X, typename Y>
cudaError_t LaunchKept(const CausalShape& shape, const FuseblockCudaRows& x,
                       const FuseblockCudaRows& y, cudaStream_t stream) {
  constexpr int kBlock = kCausalBlock<kThreads>;
  return LaunchOverlapped(CausalRowsKernel<X, Y, kThreads, kElements, kVector>,
                          CeilDiv(shape.rows, kBlock / kThreads), dim3(kBlock), stream, shape,
                          static_cast<const X*>(x.data), x.stride, static_cast<Y*>(y.data),
                          y.stride);
}

// By the number of keys alone: it decides the order of a reduction.
template <bool kVector, typename X, typename Y>
cudaError_t LaunchByKeys(const CausalShape& shape, const FuseblockCudaRows& x,
                         const FuseblockCudaRows& y, cudaStream_t stream) {
  constexpr int k = kThreadElements;
  const auto fits = [&](int64_t elements) { return shape.cols <= elements; };
  if (fits(32 * k)) return LaunchKept<32, k, kVector, X, Y>(shape, x, y, stream);
  if (fits(64 * k)) return LaunchKept<128, k / 2, kVector, X, Y>(shape, x, y, stream);
  if (fits(128 * k)) return LaunchKept<64, 2 * k, kVector, X, Y>(shape, x, y, stream);
  if (fits(256 * k)) return LaunchKept<256, k, kVector, X, Y>(shape, x, y, stream);
  if (fits(512 * k)) return LaunchKept<512, k, kVector, X, Y>(shape, x, y, stream);
  if (fits(1024 * k)) return LaunchKept<512, 2 * k, kVector, X, Y>(shape, x, y, stream);
  return LaunchOverlapped(CausalLongRowsKernel<X, Y, kVector>, shape.rows, dim3(kLongRowBlock),
                          stream, shape, static_cast<const X*>(x.data), x.stride,
                          static_cast<Y*>(y.data), y.stride);
}

}  // namespace

int LaunchCausalSoftmax(const FuseblockCudaRows* x, int64_t queries, float scale,
                        const FuseblockCudaRows* y, void* stream) {
  if (x->rows == 0 || x->cols == 0) return cudaSuccess;
  return VisitCudaFloat(y->dtype, [&](auto out) {
    using Y = decltype(out);
    return VisitSameOrFloat(out, y->dtype, x->dtype, [&](auto in) {
      using X = decltype(in);
      const CausalShape shape{x->rows, x->cols, queries, PowerScale(scale)};
      const auto cuda_stream = static_cast<cudaStream_t>(stream);
      const bool vector =
          Aligned16(*x) && Aligned16(*y) && x->cols % (16 / static_cast<int>(sizeof(X))) == 0;
      return vector ? LaunchByKeys<true, X, Y>(shape, *x, *y, cuda_stream)
                    : LaunchByKeys<false, X, Y>(shape, *x, *y, cuda_stream);
    });
  });
}

}  // namespace fuseblock
