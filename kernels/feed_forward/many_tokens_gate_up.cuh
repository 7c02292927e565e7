// product = f(n * gate^T) * (n * up^T), or f(n * up^T + bias), rounded once: a tile is 128 tokens
// and 14 or 16 groups, that is, 112 or 128 columns of the product (224 or 256 without a gate), by
// each block of a cluster; gate and up of a column meet in one thread.
#pragma once

#include "kernels/feed_forward/forms.cuh"
#include "kernels/feed_forward/many_tokens_pipe.cuh"

namespace fuseblock {

// Rows of weights in a tile of that many groups.
template <int kGroups>
constexpr int kManyGateUpColumns = kGroups* kGroupBytes / kTileRowBytes;

struct ManyGateUpParams : ManyParams {
  std::byte* product;  // [block of tokens][tile][token][128 bytes]
  bool in_rows;        // or [token][intermediate]
  const float* bias;   // of up, in a dense form; null: none
  int* meetings;       // down's, made zero for it
  int meeting_count;
};

#if FUSEBLOCK_SM90A

// A lane's share of a tile's weights: where groups of the half that this block copies lie side by
// side, the lane of the first of them has them all.
template <int kGroups>
struct ManyGroups {
  const FewTokensPlan& plan;
  const std::byte* at = nullptr;
  uint32_t offset = 0, bytes = 0;
  int step = 0;  // to the next tile of a piece
  int tile = 0, left = 0;
  int half = 0, in_half = 0;
  const std::byte* part = nullptr;

  __device__ ManyGroups(const ManyGateUpParams& p, int column, int /*part*/, int rank, int lane)
      : plan(p.plan) {
    constexpr int kHere = kGroups / kClusterBlocks;
    const int group = column * kGroups + rank * kHere + lane;
    const int groups = plan.all_groups;
    if (lane >= kHere || group >= groups) return;
    const int in_part = group % plan.groups;
    half = in_part >= plan.half_first(1) ? 1 : 0;
    in_half = in_part - plan.half_first(half);
    if (lane != 0 && in_half != 0) return;  // has been copied by a lane before
    const int run = min(min(plan.half_groups(half) - in_half, kHere - lane), groups - group);
    offset = (rank * kHere + lane) * kGroupBytes;
    bytes = run * kGroupBytes;
    step = plan.half_groups(half) * kGroupBytes;
    part = p.weights + group / plan.groups * plan.part_bytes();
    BeginPiece();
  }
  static __device__ uint32_t Bytes(const ManyGateUpParams& p, int column) {
    const int groups = p.plan.all_groups;
    return min(kGroups, groups - column * kGroups) * kGroupBytes;
  }
  // By a warp: the bias of a tile's columns, into the L2.
  static __device__ void Prefetch(const ManyGateUpParams& p, int column, int /*block*/) {
    if (p.bias == nullptr) return;
    constexpr int kLine = 32;  // elements
    const int columns = kGroups * p.plan.group_columns();
    for (int i = static_cast<int>(threadIdx.x) % kWarpThreads * kLine; i < columns;
         i += kWarpThreads * kLine) {
      const int64_t at = int64_t{column} * columns + i;
      if (at < p.plan.intermediate) hopper::PrefetchL2(p.bias + at);
    }
  }
  __device__ void Advance() {
    if (bytes == 0) return;
    ++tile;
    at += step;
    if (--left == 0) BeginPiece();
  }

 private:
  __device__ void BeginPiece() {
    left = min(plan.depth, static_cast<int>(plan.gate_up_tiles()) - tile);
    at = part + int64_t{tile} * plan.groups * kGroupBytes +
         (half == 1 ? left * plan.half_groups(0) : 0) * kGroupBytes + in_half * kGroupBytes;
  }
};

// What a thread adds to its sums of four chunks of 8 columns from one on: columns 2 (lane % 4) and
// the next of each.
template <typename Form>
struct ChunkBiases {
  float2 of[4];

  __device__ void Load(const ManyGateUpParams& p, int64_t first) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      of[e] = {kNoBias, kNoBias};
      if constexpr (Form::kBiased) {
        const int64_t column = (first + e) * 8 + threadIdx.x % 4 * 2;
        if (p.bias != nullptr && column < p.plan.intermediate) {
          of[e] = *reinterpret_cast<const float2*>(p.bias + column);
        }
      }
    }
  }
};

// A thread's columns of tokens `token` and token + 8 of the block.
template <typename T, int kGroups, typename Form>
__device__ void StoreManyColumns(const float (&sum)[kManyGateUpColumns<kGroups> / 2],
                                 const ManyGateUpParams& p, int column, int block, int token) {
  constexpr int kAtOnce = 4;
  constexpr int kEights = Form::kEights;
  constexpr int kChunks = kGroups * kEights;  // of 8 columns
  const int lane = threadIdx.x % kWarpThreads;
  const int64_t chunks = p.plan.all_groups * kEights;
  const int64_t first_chunk = int64_t{column} * kChunks;
  std::byte* to = p.product + int64_t{block} * chunks * kTokenBlock * 16;
  const auto offset = [&](int row, int64_t chunk) {
    return p.in_rows ? (row * chunks + chunk) * 16
                     : FewTokensPlan::ActivationOffset(kTokenBlock, row, chunk);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = token + 8 * half;
    ChunkBiases<Form> next;  // loaded a step before they are used, and no sooner
    next.Load(p, first_chunk);
#pragma unroll
    for (int first = 0; first < kChunks; first += kAtOnce) {
      const ChunkBiases<Form> bias = next;
      if (first + kAtOnce < kChunks) next.Load(p, first_chunk + first + kAtOnce);
      uint32_t two[kAtOnce];  // columns 2 (lane % 4) and the next of each chunk
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) {
        const int here = first + e < kChunks ? first + e : first;
        const float* d = sum + 8 * (here / kEights) + 2 * half;
        const int eight = here % kEights;
        two[e] = Packed<T>(Form::template Of<T>(eight, d[0], d[4], bias.of[e].x),
                           Form::template Of<T>(eight, d[1], d[5], bias.of[e].y));
      }
      TransposeQuad(two);
      const int64_t chunk = first_chunk + first + lane % 4;
      if (first + lane % 4 < kChunks && chunk < chunks && block * kTokenBlock + row < p.tokens) {
        *reinterpret_cast<uint4*>(to + offset(row, chunk)) =
            make_uint4(two[0], two[1], two[2], two[3]);
      }
    }
  }
}

template <typename T, int kGroups, typename Form, typename Pipe>
__device__ void ConsumeManyGateUp(const Pipe& pipe, const ManyGateUpParams& p, int rank) {
  hopper::AwaitGrids();
  for (int i = static_cast<int>(blockIdx.x * kManyConsumers + threadIdx.x); i < p.meeting_count;
       i += static_cast<int>(gridDim.x) * kManyConsumers) {
    p.meetings[i] = 0;
  }
  const int warp = threadIdx.x / kWarpThreads;
  const int token = warp * 16 + threadIdx.x % kWarpThreads / 4;
  ManyReader<kManyGateUpColumns<kGroups>> reader{pipe, static_cast<uint32_t>(1 - rank)};
  for (int i = p.first_tile(); i < p.tiles.count(); i += p.tile_step()) {
    float sum[kManyGateUpColumns<kGroups> / 2];
    int column = p.tiles.column(i);
    int block = p.tiles.token(i) * kClusterBlocks + rank;
    KeepHere(column);
    KeepHere(block);
    reader.template Multiply<T>(sum, p.tiles.k_tiles);
    StoreManyColumns<T, kGroups, Form>(sum, p, column, block, token);
  }
}

#endif  // FUSEBLOCK_SM90A

template <typename T, int kGroups, typename Form>
__global__ void __launch_bounds__(kManyThreads, 1)
    ManyGateUpKernel([[maybe_unused]] const __grid_constant__ ManyGateUpParams p) {
#if FUSEBLOCK_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  RunManyTokens<kManyGateUpColumns<kGroups>, ManyGroups<kGroups>>(
      p, SharedAddress(shared), [](const auto& pipe, const auto& params, int rank) {
        ConsumeManyGateUp<T, kGroups, Form>(pipe, params, rank);
      });
#endif
}

}  // namespace fuseblock
