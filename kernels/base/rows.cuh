// Kernels that reduce a row and then write it: norms and softmaxes, from one template.
//
// A Source says where a row's values h come from: it loads units (cuda_types.cuh), turns them into
// FP32 and may store them on the way out (residual_out). A Policy reduces the row and writes its
// outputs. The row is read once: up to 16,384 columns it stays in registers, 16 elements a thread
// (32 beyond 8,192), by 1, 4, 8 or 16 warps a row; above that a block of 1,024 threads goes over
// it again, from the cache, for each reduction and for the output.
//
// The order of a reduction: a thread's own elements in order, then a tree in the warp, then the
// warps by fours. Which thread has which element depends on the number of columns and the source's
// type alone.
//
// Speed: a block keeps its row's loads in flight, and so many blocks must be resident: registers
// are bounded for 1,024 or 1,536 threads a multiprocessor, whichever spills nothing (RowsPlan);
// operands of columns (weights) are loaded before the reduction where there are registers for them;
// a reduction is one barrier.
//
// Source: as PlainSource below. A Policy has
//   kFill: what elements beyond the row's end count as in ForEach;
//   kReductions: how many values it reduces over the row, in all;
//   kColumnBytes: what a column's operands take, which Columns<N> holds for N columns;
//   LoadColumns<kVector>(columns, col, left);
//   Reduce(row, reduce) -> Stats: any number of row.ForEach(f(h, left)) and reduce(values, op);
//   Write<kVector, kKept>(stats, columns, h, row, col, left), where kKept says that h is what the
//     last ForEach of Reduce left in it; otherwise it is the row's values.
// kVector: every operand is aligned and the columns are whole units. left: columns up to the row's
// end, which may be negative in ForEach.
#pragma once

#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/base/reduce.cuh"

namespace fuseblock {

constexpr int kThreadElements = 16;  // of a row in one thread's registers
constexpr int kWarpRowBlock = 128;   // threads of a block whose warps have a row each
constexpr int kLongRowBlock = 1024;

struct RowsShape {
  int64_t rows, cols;
};

// Reduces values over the kWarps warps of a row; each call uses scratch of its own, so that one
// barrier does.
template <int kWarps>
struct RowReducer {
  float* scratch;  // shared, 16-byte aligned, kWarps floats for each value

  template <int kValues, typename Op>
  __device__ void operator()(float (&values)[kValues], Op op) {
#pragma unroll
    for (float& value : values) value = WarpReduce(value, op);
    if constexpr (kWarps > 1) {
      if (threadIdx.x % kWarp == 0) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) scratch[i * kWarps + threadIdx.x / kWarp] = values[i];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        values[i] = OfWarps(scratch + i * kWarps, op);
      }
      scratch += kValues * kWarps;
    }
  }

 private:
  // Four at a time, which is one access, in order.
  template <typename Op>
  static __device__ float OfWarps(const float* partial, Op op) {
    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < kWarps; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(partial + j);
      const float sum = op(op(four.x, four.y), op(four.z, four.w));
      total = j == 0 ? sum : op(total, sum);
    }
    return total;
  }
};

// A row in the registers of kThreads threads.
template <int N, int kUnits, int kThreads>
struct KeptRow {
  static constexpr bool kKept = true;

  float h[kUnits][N];
  int lane, cols;

  __device__ int Column(int u) const { return (u * kThreads + lane) * N; }
  template <typename F>
  __device__ void ForEach(F&& f) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) f(h[u], cols - Column(u));
  }
};

// Turns a loaded unit into FP32, elements beyond the row's end into `fill`.
template <typename Source, typename Left, int N>
__device__ void FilledValues(const Source& source, const typename Source::Raw& raw, Left left,
                             float fill, float (&h)[N]) {
  source.Values(raw, h);
  if (left >= N) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i >= left) h[i] = fill;
  }
}

// Rows of one tensor as they are.
template <typename X>
struct PlainSource {
  static constexpr int kUnit = 16 / sizeof(X);
  using Raw = Unit<X, kUnit>;

  const X* x;
  int64_t stride;

  __device__ void SetRow(int64_t row) { x += row * stride; }
  // kOnce: nobody reads it again.
  template <bool kVector, bool kOnce, typename Left>
  __device__ void Load(Raw& raw, int64_t col, Left left) const {
    raw.template Load<kVector, kOnce>(x + col, left);
  }
  __device__ void Values(const Raw& raw, float (&h)[kUnit]) const {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) h[i] = ToFloat(raw.v[i]);
  }
  // What else the kernel writes beside the policy's output; this source nothing.
  template <bool kVector, typename Left>
  __device__ void Store(const float (&)[kUnit], int64_t, Left) const {}
};

// What a kernel for rows in registers is made of.
template <typename Source, typename Policy, int kThreads, int kElements, bool kVector>
struct RowsPlan {
  static constexpr int kBlock = kThreads == kWarp ? kWarpRowBlock : kThreads;
  static constexpr int kUnits = kElements / Source::kUnit;
  // Bytes that an element takes in registers while they are loaded.
  static constexpr int kSourceBytes = sizeof(typename Source::Raw) / Source::kUnit;
  static constexpr int kHoistedBytes = kSourceBytes + Policy::kColumnBytes;
  // Blocks of 512 threads have enough other work beside the few columns' loads, which then come
  // from the first level's cache.
  static constexpr bool kHoist =
      kElements == kThreadElements && (kThreads < 512 || kHoistedBytes <= 4);
  // Threads that a multiprocessor must hold: as many as leave each of them enough registers.
  static constexpr int ThreadsMin() {
    if (kElements > kThreadElements) return kSourceBytes + Policy::kColumnBytes <= 4 ? 1024 : 512;
    if (kHoist && kHoistedBytes > 8) return 512;
    if (kSourceBytes > 2 || Policy::kColumnBytes > 4) return 1024;
    return kHoist && kHoistedBytes > 4 ? 1024 : 1536;
  }
  // What is not aligned is not fast anyway.
  static constexpr int kMinBlocks = kVector ? ThreadsMin() / kBlock : 1;
};

// kThreads of a block per row, the row in registers.
template <typename Source, typename Policy, int kThreads, int kElements, bool kVector>
__global__ void __launch_bounds__(
    RowsPlan<Source, Policy, kThreads, kElements, kVector>::kBlock,
    RowsPlan<Source, Policy, kThreads, kElements, kVector>::kMinBlocks)
    RowsKernel(RowsShape shape, Source source, Policy policy) {
  AwaitPredecessors();
  constexpr int N = Source::kUnit;
  using Plan = RowsPlan<Source, Policy, kThreads, kElements, kVector>;
  constexpr int kUnits = Plan::kUnits;
  constexpr bool kHoist = Plan::kHoist;
  constexpr int kWarps = kThreads / kWarp;
  constexpr bool kWarpRow = kThreads == kWarp;
  __shared__ __align__(16) float scratch[kWarpRow ? 1 : Policy::kReductions * kWarps];
  const int64_t row =
      kWarpRow ? static_cast<int64_t>(blockIdx.x) * (kWarpRowBlock / kWarp) + threadIdx.x / kWarp
               : blockIdx.x;
  if (row >= shape.rows) return;  // a whole warp, and only where no barrier follows
  KeptRow<N, kUnits, kThreads> kept;
  kept.lane = static_cast<int>(threadIdx.x) % kThreads;
  kept.cols = static_cast<int>(shape.cols);
  source.SetRow(row);

  typename Source::Raw raw[kUnits];
  typename Policy::template Columns<N> columns[kHoist ? kUnits : 1];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int col = kept.Column(u);
    if (col < kept.cols) {
      source.template Load<kVector, true>(raw[u], col, kept.cols - col);
    }
  }
  if constexpr (kHoist) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int col = kept.Column(u);
      if (col < kept.cols) {
        policy.template LoadColumns<kVector>(columns[u], col, kept.cols - col);
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    FilledValues(source, raw[u], kept.cols - kept.Column(u), Policy::kFill, kept.h[u]);
  }
  const auto stats = policy.Reduce(kept, RowReducer<kWarps>{scratch});
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int col = kept.Column(u);
    if (col >= kept.cols) continue;
    const int left = kept.cols - col;
    if constexpr (!kHoist) policy.template LoadColumns<kVector>(columns[0], col, left);
    source.template Store<kVector>(kept.h[u], col, left);
    policy.template Write<kVector, true>(stats, columns[kHoist ? u : 0], kept.h[u], row, col, left);
  }
}

// A row that is loaded anew for every pass over it.
template <typename Source, bool kVector>
struct LongRow {
  static constexpr bool kKept = false;
  static constexpr int N = Source::kUnit;
  static constexpr int64_t kStep = static_cast<int64_t>(kLongRowBlock) * N;

  const Source& source;
  RowsShape shape;
  float fill;

  __device__ int64_t first() const { return static_cast<int64_t>(threadIdx.x) * N; }
  __device__ void Load(int64_t col, float (&h)[N]) const {
    typename Source::Raw raw;
    source.template Load<kVector, false>(raw, col, shape.cols - col);
    FilledValues(source, raw, shape.cols - col, fill, h);
  }
  template <typename F>
  __device__ void ForEach(F&& f) const {
#pragma unroll 4
    for (int64_t col = first(); col < shape.cols; col += kStep) {
      float h[N];
      Load(col, h);
      f(h, shape.cols - col);
    }
  }
};

// Any number of columns. Only the last pass stores, each unit after it is loaded, so that in place
// is safe.
template <typename Source, typename Policy, bool kVector>
__global__ void __launch_bounds__(kLongRowBlock)
    LongRowsKernel(RowsShape shape, Source source, Policy policy) {
  AwaitPredecessors();
  constexpr int kWarps = kLongRowBlock / kWarp;
  __shared__ __align__(16) float scratch[Policy::kReductions * kWarps];
  const int64_t row = blockIdx.x;
  source.SetRow(row);
  LongRow<Source, kVector> long_row{source, shape, Policy::kFill};
  const auto stats = policy.Reduce(long_row, RowReducer<kWarps>{scratch});
#pragma unroll 2
  for (int64_t col = long_row.first(); col < shape.cols; col += LongRow<Source, kVector>::kStep) {
    const int64_t left = shape.cols - col;
    float h[Source::kUnit];
    typename Policy::template Columns<Source::kUnit> columns;
    long_row.Load(col, h);
    policy.template LoadColumns<kVector>(columns, col, left);
    source.template Store<kVector>(h, col, left);
    policy.template Write<kVector, false>(stats, columns, h, row, col, left);
  }
}

template <int kThreads, int kElements, bool kVector, typename Source, typename Policy>
cudaError_t LaunchKeptRows(const RowsShape& shape, const Source& source, const Policy& policy,
                           cudaStream_t stream) {
  constexpr int kBlock = RowsPlan<Source, Policy, kThreads, kElements, kVector>::kBlock;
  return LaunchOverlapped(RowsKernel<Source, Policy, kThreads, kElements, kVector>,
                          CeilDiv(shape.rows, kBlock / kThreads), dim3(kBlock), stream, shape,
                          source, policy);
}

// By the number of columns alone: it decides the order of a reduction.
template <bool kVector, typename Source, typename Policy>
cudaError_t LaunchByColumns(const RowsShape& shape, const Source& source, const Policy& policy,
                            cudaStream_t stream) {
  constexpr int k = kThreadElements;
  const auto fits = [&](int64_t elements) { return shape.cols <= elements; };
  if (fits(32 * k)) return LaunchKeptRows<32, k, kVector>(shape, source, policy, stream);
  if (fits(128 * k)) return LaunchKeptRows<128, k, kVector>(shape, source, policy, stream);
  if (fits(256 * k)) return LaunchKeptRows<256, k, kVector>(shape, source, policy, stream);
  if (fits(512 * k)) return LaunchKeptRows<512, k, kVector>(shape, source, policy, stream);
  if (fits(1024 * k)) return LaunchKeptRows<512, 2 * k, kVector>(shape, source, policy, stream);
  return LaunchOverlapped(LongRowsKernel<Source, Policy, kVector>, shape.rows, dim3(kLongRowBlock),
                          stream, shape, source, policy);
}

// aligned: every operand starts each of its rows on a 16-byte boundary.
template <typename Source, typename Policy>
cudaError_t LaunchRows(const RowsShape& shape, bool aligned, const Source& source,
                       const Policy& policy, cudaStream_t stream) {
  if (shape.rows == 0 || shape.cols == 0) return cudaSuccess;
  if (aligned && shape.cols % Source::kUnit == 0) {
    return LaunchByColumns<true>(shape, source, policy, stream);
  }
  return LaunchByColumns<false>(shape, source, policy, stream);
}

}  // namespace fuseblock
