// Kernels that reduce a row and then write it: norms and softmaxes, from one template.
//
// A Source says where a row's values h come from: it loads units (cuda_types.cuh), turns them into
// FP32 and may store them on the way out (residual_out). A Policy reduces the row and writes its
// outputs. The row is read once: up to 16,384 columns it stays in registers; above that a block of
// 1,024 threads goes over it again, from the cache, for each reduction and for the output.
//
// The order of a reduction is one of units, not of threads: a unit's elements in order, then the
// units of each 32 as a tree, then those groups as a tree, halves first. So a row has the same bits
// whether many threads take 8 or 16 elements each (few rows: what counts is the time of one) or few
// threads take several (many rows: what counts are barriers and registers), and the launcher may
// choose by the number of rows. (A row beyond 16,384 columns has one order: a thread's own units in
// order.)
//
// Speed: a block keeps its row's loads in flight, and so many blocks must be resident: registers
// are bounded for the threads that a multiprocessor must hold (RowsPlan); a reduction is one
// barrier.
//
// Source: as PlainSource below. A Policy has
//   kFill: what elements beyond the row's end are, 0 or -inf;
//   kReductions: how many values it reduces over the row, in all;
//   kUsesFirst (may be left out): that it asks for row.First(), the row's first value;
//   Columns<N>: the operands of N columns; LoadColumns<kVector>(columns, col, left);
//   Reduce(row) -> Stats, by row.Reduce<kValues>(op, f), where f(partial, h, left) takes a unit's
//     values h into the kValues partial results and may change them;
//   Write<kVector, kKept>(stats, columns, h, row, col, left), where kKept says that h is what the
//     last f left in it; otherwise it is the row's values.
// kVector: every operand is aligned and the columns are whole units. left: columns up to the row's
// end, which may be negative in f.
#pragma once

#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/base/reduce.cuh"

namespace fuseblock {

constexpr int kWarpRowBlock = 128;  // threads of a block whose warps have a row each
constexpr int kLongRowBlock = 1024;

struct RowsShape {
  int64_t rows, cols;
};

template <int kValues>
struct Reduced {
  float values[kValues];
};

// The values of kUnits groups of 32, one of each in every lane, reduced: the tree over the lanes
// for each of them, then the tree over the groups, halves first. Every lane gets the result.
// As long as several values are left, a step leaves half of them to the lane's partner.
template <int kUnits, typename Op>
__device__ float ReduceGroupsOfWarp(float (&values)[kUnits], Op op) {
  int offset = kWarp / 2;
#pragma unroll
  for (int left = kUnits; left > 1; left /= 2, offset /= 2) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(offset)) != 0;
#pragma unroll
    for (int i = 0; i < left / 2; ++i) {
      const float keep = upper ? values[i + left / 2] : values[i];
      const float give = upper ? values[i] : values[i + left / 2];
      values[i] = op(keep, __shfl_xor_sync(0xffffffffu, give, offset));
    }
  }
  float value = values[0];
#pragma unroll
  for (; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  // Lanes whose upper log2(kUnits) bits are u have group u.
#pragma unroll
  for (int u = kUnits / 2, other = kWarp / 2; u > 0; u /= 2, other /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, other));
  }
  return value;
}

// The tree over kCount of the values from `first` on, kStride apart, halves first.
template <int kCount, int kStride, int kSize, typename Op>
__device__ float ReduceTree(const float (&values)[kSize], int first, Op op) {
  if constexpr (kCount == 1) {
    return values[first];
  } else {
    return op(ReduceTree<kCount / 2, 2 * kStride>(values, first, op),
              ReduceTree<kCount / 2, 2 * kStride>(values, first + kStride, op));
  }
}

// The tree over the results of kWarps warps; scratch is 16-byte aligned.
template <int kWarps, typename Op>
__device__ float ReduceWarps(const float* scratch, Op op) {
  constexpr int kRoom = kWarps < 4 ? 4 : kWarps;
  float values[kRoom];
#pragma unroll
  for (int i = 0; i < kRoom; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(scratch + i);
    values[i] = four.x;
    values[i + 1] = four.y;
    values[i + 2] = four.z;
    values[i + 3] = four.w;
  }
  return ReduceTree<kWarps, 1>(values, 0, op);
}

// Each call of AcrossWarps uses shared scratch of its own, so that one barrier does.
template <int kWarps>
struct WarpResults {
  static constexpr int kRoom = kWarps < 4 ? 4 : kWarps;
  float* scratch;  // kRoom floats for each value

  template <int kValues, typename Op>
  __device__ void AcrossWarps(float (&values)[kValues], Op op) {
    if constexpr (kWarps > 1) {
      if (threadIdx.x % kWarp == 0) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) scratch[i * kRoom + threadIdx.x / kWarp] = values[i];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] = ReduceWarps<kWarps>(scratch + i * kRoom, op);
      scratch += kValues * kRoom;
    }
  }
};

// Reduces a value of each thread over the kWarps warps of a row.
template <int kWarps>
struct RowReducer {
  WarpResults<kWarps> warps;

  template <int kValues, typename Op>
  __device__ void operator()(float (&values)[kValues], Op op) {
#pragma unroll
    for (float& value : values) value = WarpReduce(value, op);
    warps.AcrossWarps(values, op);
  }
};

// A row in the registers of kThreads threads.
template <int N, int kUnits, int kThreads>
struct KeptRow {
  float h[kUnits][N];
  float first;
  int lane, cols;
  WarpResults<kThreads / kWarp> warps;

  __device__ int Column(int u) const { return (u * kThreads + lane) * N; }
  __device__ float First() const { return first; }

  template <int kValues, typename Op, typename F>
  __device__ Reduced<kValues> Reduce(Op op, F&& f) {
    float units[kValues][kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float partial[kValues];
#pragma unroll
      for (float& value : partial) value = Op::Identity();
      f(partial, h[u], cols - Column(u));
#pragma unroll
      for (int i = 0; i < kValues; ++i) units[i][u] = partial[i];
    }
    Reduced<kValues> total;
#pragma unroll
    for (int i = 0; i < kValues; ++i) total.values[i] = ReduceGroupsOfWarp(units[i], op);
    warps.AcrossWarps(total.values, op);
    return total;
  }
};

// Rows of one tensor as they are.
template <typename X>
struct PlainSource {
  static constexpr int kUnit = 16 / sizeof(X);
  using Raw = Unit<X, kUnit>;

  const X* x;
  int64_t stride;

  __device__ void SetRow(int64_t row) { x += row * stride; }
  // Columns beyond the row's end become `fill`.
  template <bool kVector, typename Left>
  __device__ void Load(Raw& raw, int64_t col, Left left, float fill) const {
    raw.template LoadOrFill<kVector>(x + col, left, fill);
  }
  __device__ void Values(const Raw& raw, float (&h)[kUnit]) const {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) h[i] = ToFloat(raw.v[i]);
  }
  __device__ float First() const { return ToFloat(x[0]); }
  // What else the kernel writes beside the policy's output; this source nothing. A source that
  // writes must not meet a policy that changes h.
  template <bool kVector, typename Left>
  __device__ void Store(const float (&)[kUnit], int64_t, Left) const {}
};

// How a kernel for rows in registers is made: kThreads of a block for each row, kElements of it in
// each; whether the columns' operands are loaded before the reduction (kHoist) or after it, when
// they come from the first level's cache; the threads that a multiprocessor must be able to hold,
// which bounds the registers.
template <int kThreadsIn, int kElementsIn, bool kHoistIn, int kResidentThreads>
struct RowsPlan {
  static constexpr int kThreads = kThreadsIn;
  static constexpr int kElements = kElementsIn;
  static constexpr bool kHoist = kHoistIn;
  static constexpr int kBlock = kThreads == kWarp ? kWarpRowBlock : kThreads;
  static_assert((kThreads & (kThreads - 1)) == 0 && (kElements & (kElements - 1)) == 0);  // trees
  static constexpr int kMinBlocks = kResidentThreads / kBlock < 1 ? 1 : kResidentThreads / kBlock;
};

template <typename Source, typename Policy, typename Plan, bool kVector>
__global__ void __launch_bounds__(Plan::kBlock, kVector ? Plan::kMinBlocks : 1)
    RowsKernel(RowsShape shape, Source source, Policy policy) {
  AwaitPredecessors();
  constexpr int N = Source::kUnit;
  constexpr int kThreads = Plan::kThreads;
  constexpr int kUnits = Plan::kElements / N;
  constexpr bool kHoist = Plan::kHoist;
  constexpr int kWarps = kThreads / kWarp;
  constexpr bool kWarpRow = kThreads == kWarp;
  __shared__ __align__(16) float scratch[Policy::kReductions * WarpResults<kWarps>::kRoom];
  const int64_t row =
      kWarpRow ? static_cast<int64_t>(blockIdx.x) * (kWarpRowBlock / kWarp) + threadIdx.x / kWarp
               : blockIdx.x;
  if (row >= shape.rows) return;  // a whole warp, and only where no barrier follows
  KeptRow<N, kUnits, kThreads> kept;
  kept.lane = static_cast<int>(threadIdx.x) % kThreads;
  kept.cols = static_cast<int>(shape.cols);
  kept.warps.scratch = scratch;
  source.SetRow(row);
  if constexpr (requires { Policy::kUsesFirst; }) kept.first = source.First();

  typename Source::Raw raw[kUnits];
  typename Policy::template Columns<N> columns[kHoist ? kUnits : 1];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int col = kept.Column(u);
    source.template Load<kVector>(raw[u], col, kept.cols - col, Policy::kFill);
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
  for (int u = 0; u < kUnits; ++u) source.Values(raw[u], kept.h[u]);
  const auto stats = policy.Reduce(kept);
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
  static constexpr int N = Source::kUnit;
  static constexpr int64_t kStep = static_cast<int64_t>(kLongRowBlock) * N;

  const Source& source;
  RowsShape shape;
  float fill;
  RowReducer<kLongRowBlock / kWarp> reduce;

  __device__ int64_t Begin() const { return static_cast<int64_t>(threadIdx.x) * N; }
  __device__ float First() const { return source.First(); }
  __device__ void Load(int64_t col, float (&h)[N]) const {
    typename Source::Raw raw;
    source.template Load<kVector>(raw, col, shape.cols - col, fill);
    source.Values(raw, h);
  }
  template <int kValues, typename Op, typename F>
  __device__ Reduced<kValues> Reduce(Op op, F&& f) {
    Reduced<kValues> total;
#pragma unroll
    for (float& value : total.values) value = Op::Identity();
#pragma unroll 4
    for (int64_t col = Begin(); col < shape.cols; col += kStep) {
      float h[N];
      Load(col, h);
      f(total.values, h, shape.cols - col);
    }
    reduce(total.values, op);
    return total;
  }
};

// Any number of columns. Only the last pass stores, each unit after it is loaded, so that in place
// is safe.
template <typename Source, typename Policy, bool kVector>
__global__ void __launch_bounds__(kLongRowBlock)
    LongRowsKernel(RowsShape shape, Source source, Policy policy) {
  AwaitPredecessors();
  __shared__ __align__(16) float scratch[Policy::kReductions * (kLongRowBlock / kWarp)];
  const int64_t row = blockIdx.x;
  source.SetRow(row);
  LongRow<Source, kVector> long_row{source, shape, Policy::kFill, {{scratch}}};
  const auto stats = policy.Reduce(long_row);
#pragma unroll 2
  for (int64_t col = long_row.Begin(); col < shape.cols; col += LongRow<Source, kVector>::kStep) {
    const int64_t left = shape.cols - col;
    float h[Source::kUnit];
    typename Policy::template Columns<Source::kUnit> columns;
    long_row.Load(col, h);
    policy.template LoadColumns<kVector>(columns, col, left);
    source.template Store<kVector>(h, col, left);
    policy.template Write<kVector, false>(stats, columns, h, row, col, left);
  }
}

template <typename Plan, bool kVector, typename Source, typename Policy>
cudaError_t LaunchKeptRows(const RowsShape& shape, const Source& source, const Policy& policy,
                           cudaStream_t stream) {
  return LaunchOverlapped(RowsKernel<Source, Policy, Plan, kVector>,
                          CeilDiv(shape.rows, Plan::kBlock / Plan::kThreads), dim3(Plan::kBlock),
                          stream, shape, source, policy);
}

// Rows are few when their threads, 8 or 16 elements each, are no more than a large GPU holds at
// once.
constexpr int64_t kFewRowsThreads = 1 << 18;

// A number of columns has one capacity, threads times elements, whose units are reduced in one
// order; the number of rows chooses how it is cut.
template <bool kVector, typename Source, typename Policy>
cudaError_t LaunchByShape(const RowsShape& shape, const Source& source, const Policy& policy,
                          cudaStream_t stream) {
  const auto launch = [&](auto few, auto many) {
    using Few = decltype(few);
    using Many = decltype(many);
    static_assert(Few::kThreads * Few::kElements == Many::kThreads * Many::kElements);
    if constexpr (kVector) {
      if (shape.rows * Few::kThreads <= kFewRowsThreads) {
        return LaunchKeptRows<Few, kVector>(shape, source, policy, stream);
      }
    }
    return LaunchKeptRows<Many, kVector>(shape, source, policy, stream);
  };
  // 32 elements need more registers where each is loaded from more than two bytes; then there are
  // some for a few bytes of columns, too.
  constexpr int N = Source::kUnit;
  constexpr int kBytes = sizeof(typename Source::Raw) / N;
  constexpr int kColumnBytes = sizeof(typename Policy::template Columns<N>) / N;
  constexpr int kResident = kBytes <= 2 ? 1024 : 512;
  constexpr bool kHoist = kBytes > 2 && kColumnBytes <= 4;
  const int64_t cols = shape.cols;
  if (cols <= 512) return launch(RowsPlan<64, 8, true, 1024>(), RowsPlan<32, 16, false, 1024>());
  if (cols <= 1024) {
    return launch(RowsPlan<128, 8, true, 1024>(), RowsPlan<32, 32, kHoist, kResident>());
  }
  if (cols <= 2048) {
    return launch(RowsPlan<256, 8, true, 1024>(), RowsPlan<64, 32, kHoist, kResident>());
  }
  if (cols <= 4096) {
    // Of several FP32 tensors one unit a thread.
    using Wide =
        std::conditional_t<N == 4, RowsPlan<1024, 4, true, 2048>, RowsPlan<256, 16, true, 1024>>;
    using Few = std::conditional_t<(kBytes > 4), Wide, RowsPlan<512, 8, true, 1024>>;
    return launch(Few(), RowsPlan<128, 32, kHoist, kResident>());
  }
  if (cols <= 8192) {
    return launch(RowsPlan<1024, 8, true, 1024>(), RowsPlan<256, 32, kHoist, kResident>());
  }
  if (cols <= 16384) {
    return LaunchKeptRows<RowsPlan<512, 32, kHoist, kResident>, kVector>(shape, source, policy,
                                                                         stream);
  }
  return LaunchOverlapped(LongRowsKernel<Source, Policy, kVector>, shape.rows, dim3(kLongRowBlock),
                          stream, shape, source, policy);
}

// aligned: every operand starts each of its rows on a 16-byte boundary.
template <typename Source, typename Policy>
cudaError_t LaunchRows(const RowsShape& shape, bool aligned, const Source& source,
                       const Policy& policy, cudaStream_t stream) {
  if (shape.rows == 0 || shape.cols == 0) return cudaSuccess;
  if (aligned && shape.cols % Source::kUnit == 0) {
    return LaunchByShape<true>(shape, source, policy, stream);
  }
  return LaunchByShape<false>(shape, source, policy, stream);
}

}  // namespace fuseblock
