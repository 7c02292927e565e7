// y = (x (+ residual) +) product * down^T (+ bias): a tile is 128 tokens and 2 or 4 panels of 64
// outputs by each block of a cluster.
//
// Where K has two segments, their sums meet in memory (the L2): the accumulators fill the
// registers. One block does both, one after the other; or, where there are so few tiles that half
// of the GPU would be idle, two blocks do one each, and the warpgroup that comes last adds and
// stores. None waits for another, which need not be on the GPU.
#pragma once

#include "kernels/feed_forward/down_operands.cuh"
#include "kernels/feed_forward/many_tokens_pipe.cuh"

namespace fuseblock {

struct ManyDownParams : ManyParams, DownOperands {
  int segments;  // of K, 1 or 2
  // A segment's sums until the other's are there, as [block, or tile and block of the cluster][8
  // columns][thread]; and, where two blocks do them, whether that happened, for each warpgroup.
  float4* waiting;
  int* meetings;
};

#if FUSEBLOCK_SM90A

// A lane's panel of a tile's weights.
template <int kPanels, bool kBiased>
struct ManyPanelRows {
  const std::byte* at = nullptr;
  uint32_t offset = 0, bytes = 0;

  __device__ ManyPanelRows(const ManyDownParams& p, int column, int part, int rank, int lane) {
    constexpr int kHere = kPanels / kClusterBlocks;
    const int panel = column * kPanels + rank * kHere + lane;
    if (lane >= kHere || panel >= p.plan.hidden / kPanelRows) return;
    at = p.weights +
         (int64_t{panel} * p.all_k_tiles() + part * p.tiles.k_tiles) * int64_t{kPanelTileBytes};
    offset = (rank * kHere + lane) * kPanelTileBytes;
    bytes = kPanelTileBytes;
  }
  static __device__ uint32_t Bytes(const ManyDownParams& p, int column) {
    const int panels = static_cast<int>(p.plan.hidden / kPanelRows);
    return min(kPanels, panels - column * kPanels) * kPanelTileBytes;
  }
  __device__ void Advance() { at += bytes; }

  // By a warp, for one that will soon add them: a tile's rows of x and the residual, into the L2.
  static __device__ void Prefetch(const ManyDownParams& p, int column, int block) {
    constexpr int kLine = 64;  // elements
    for (int i = static_cast<int>(threadIdx.x) % kWarpThreads; i < kTokenBlock * kPanels;
         i += kWarpThreads) {
      const int64_t token = int64_t{block} * kTokenBlock + i / kPanels;
      const int64_t at = (int64_t{column} * kPanels + i % kPanels) * kLine;
      if (token >= p.tokens || at >= p.plan.hidden) continue;
      if (p.x != nullptr) hopper::PrefetchL2(At(p.x, token * p.x_stride + at));
      if (p.residual != nullptr) {
        hopper::PrefetchL2(At(p.residual, token * p.residual_stride + at));
      }
    }
    if constexpr (kBiased) PrefetchBias(p, column);
  }

 private:
  static __device__ void PrefetchBias(const ManyDownParams& p, int column) {
    constexpr int kLine = 32;  // elements
    const int64_t at = (int64_t{column} * kPanels * kPanelRows) +
                       static_cast<int>(threadIdx.x) % kWarpThreads * kLine;
    const int64_t end = int64_t{column + 1} * kPanels * kPanelRows;
    if (at < end && at < p.plan.hidden) hopper::PrefetchL2(p.bias + at);
  }
  static __device__ const void* At(const void* data, int64_t element) {
    return static_cast<const std::byte*>(data) + 2 * element;
  }
};

// What is added to four groups of 8 outputs of a token, from `column` on: a thread loads the 16
// bytes of one group, and gets by a transposition in its quad the 2 of each group that it has sums
// of.
template <typename T>
struct ManyAddends {
  uint4 x, residual;

  __device__ void Load(const ManyDownParams& p, int64_t token, int column) {
    x = residual = make_uint4(0, 0, 0, 0);
    if (!Exists(p, token, column)) return;
    const int64_t at = Chunk(column);
    if (p.x != nullptr) x = At(p.x, token * p.x_stride + at);
    if (p.residual != nullptr) residual = At(p.residual, token * p.residual_stride + at);
  }
  // h is added to the sums, and they are stored.
  __device__ void Store(const ManyDownParams& p, int64_t token, int column,
                        float2 (&sum)[4]) const {
    if (p.x != nullptr) {
      float2 h[4];
      BesideSums(x, h);
      if (p.residual != nullptr) {
        float2 r[4];
        BesideSums(residual, r);
#pragma unroll
        for (int e = 0; e < 4; ++e) h[e] = {h[e].x + r[e].x, h[e].y + r[e].y};
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[e] = {h[e].x + sum[e].x, h[e].y + sum[e].y};
    }
    if (p.y_float) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = column + 8 * e + static_cast<int>(threadIdx.x) % 4 * 2;
        if (token >= p.tokens || at >= p.plan.hidden) continue;
        *reinterpret_cast<float2*>(static_cast<float*>(p.y) + token * p.y_stride + at) = sum[e];
      }
      return;
    }
    uint32_t two[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) two[e] = Packed<T>(sum[e].x, sum[e].y);
    TransposeQuad(two);
    if (!Exists(p, token, column)) return;
    T* y = static_cast<T*>(p.y) + token * p.y_stride + Chunk(column);
    *reinterpret_cast<uint4*>(y) = make_uint4(two[0], two[1], two[2], two[3]);
  }

 private:
  static __device__ int Chunk(int column) { return column + static_cast<int>(threadIdx.x) % 4 * 8; }
  static __device__ bool Exists(const ManyDownParams& p, int64_t token, int column) {
    return token < p.tokens && Chunk(column) < p.plan.hidden;
  }
  static __device__ uint4 At(const void* data, int64_t offset) {
    return *reinterpret_cast<const uint4*>(static_cast<const T*>(data) + offset);
  }
  static __device__ void BesideSums(uint4 chunk, float2 (&beside)[4]) {
    uint32_t two[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
    TransposeQuad(two);
#pragma unroll
    for (int e = 0; e < 4; ++e) beside[e] = Unpacked<T>(two[e]);
  }
};

// A thread's outputs of one tile.
template <typename T, int kPanels, bool kBiased>
struct ManyDownTile {
  static constexpr int kColumns = kPanels * kPanelRows;
  static constexpr int kEights = kColumns / 8;
  using Sums = float[kColumns / 2];

  const ManyDownParams& p;
  int64_t token;  // of its first row
  int column;

  // Where its sums of the first 8 columns wait, in the place of that number.
  __device__ float4* Waiting(int place) const {
    return p.waiting + int64_t{place} * kEights * kManyConsumers + threadIdx.x;
  }
  __device__ void Wait(const Sums& sum, int place) const {
    float4* to = Waiting(place);
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      __stcg(to + i * kManyConsumers,
             make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
    }
  }
  // other: where the other segment's sums wait, or null. (Of two addends the order is the same.)
  __device__ void Store(const Sums& sum, const float4* other) const {
    Step step, next;
    Load(0, other, next);
#pragma unroll
    for (int first = 0; first < kEights; first += 4) {
      if (column + 8 * first >= p.plan.hidden) return;
      step = next;
      if (first + 4 < kEights) Load(first + 4, other, next);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 four[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float* d = sum + 4 * (first + e) + 2 * half;
          four[e] = {d[0], d[1]};
          if (other != nullptr) {
            const float4 m = step.more[e];
            const float2 of_half = half == 0 ? float2{m.x, m.y} : float2{m.z, m.w};
            four[e] = {of_half.x + d[0], of_half.y + d[1]};
          }
          if constexpr (kBiased) {
            const float2 bias = Bias(column + 8 * (first + e));
            four[e] = {four[e].x + bias.x, four[e].y + bias.y};
          }
        }
        step.addends[half].Store(p, token + 8 * half, column + 8 * first, four);
      }
    }
  }

 private:
  // What is loaded for 4 groups of 8 columns of both tokens: a step ahead of its use.
  struct Step {
    float4 more[4];
    ManyAddends<T> addends[2];
  };
  // Of this thread's two of the 8 outputs from `at` on.
  __device__ float2 Bias(int at) const {
    at += static_cast<int>(threadIdx.x) % 4 * 2;
    if (at >= p.plan.hidden) return {0, 0};
    return *reinterpret_cast<const float2*>(p.bias + at);
  }
  __device__ void Load(int first, const float4* other, Step& step) const {
    if (column + 8 * first >= p.plan.hidden) return;
    if (other != nullptr) {
#pragma unroll
      for (int e = 0; e < 4; ++e) step.more[e] = __ldcg(other + (first + e) * kManyConsumers);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      step.addends[half].Load(p, token + 8 * half, column + 8 * first);
    }
  }
};

// Two warps meet that do the same tile's segments: the one that comes first leaves its sums, the
// other one adds them to its own. `here` counts those that left sums, from zero. By whole warps.
struct ManyMeeting {
  int* here;

  __device__ bool OtherWasHere() const {
    int count = 0;
    if (threadIdx.x % kWarpThreads == 0) count = __ldcg(here);
    return Agreed(count);
  }
  // After leaving the sums. Whether the other one has done so meanwhile, too.
  __device__ bool Leave() const {
    __threadfence();
    __syncwarp();
    int count = 0;
    if (threadIdx.x % kWarpThreads == 0) count = atomicAdd(here, 1);
    return Agreed(count);
  }

 private:
  // What the first lane found, known to all, and the other's sums with it.
  static __device__ bool Agreed(int count) {
    const bool other = __shfl_sync(0xffffffffu, count, 0) != 0;
    __threadfence();
    return other;
  }
};

template <typename T, int kPanels, bool kBiased, typename Pipe>
__device__ void ConsumeManyDown(const Pipe& pipe, const ManyDownParams& p, int rank) {
  using Tile = ManyDownTile<T, kPanels, kBiased>;
  hopper::AwaitGrids();
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int row = warp * 16 + static_cast<int>(threadIdx.x) % kWarpThreads / 4;
  const bool apart = p.tiles.parts > 1;
  const int in_turn = apart ? 1 : p.segments;
  ManyReader<Tile::kColumns> reader{pipe, static_cast<uint32_t>(1 - rank)};
  for (int i = p.first_tile(); i < p.tiles.count(); i += p.tile_step()) {
    typename Tile::Sums sum;
    int block = p.tiles.token(i) * kClusterBlocks + rank;
    KeepHere(block);
    int column = p.tiles.column(i) * Tile::kColumns;
    KeepHere(column);
    const Tile tile{p, int64_t{block} * kTokenBlock + row, column};
    const int pair = i / p.tiles.parts * kClusterBlocks + rank;
    int place = static_cast<int>(blockIdx.x);
    for (int segment = 0; segment < in_turn; ++segment) {
      if (segment > 0) tile.Wait(sum, place);
      reader.template Multiply<T>(sum, p.tiles.k_tiles / in_turn);
    }
    if (apart) {
      const ManyMeeting meeting{p.meetings + pair * (kManyConsumers / kWarpThreads) + warp};
      place = 2 * pair + 1 - p.tiles.part(i);
      if (!meeting.OtherWasHere()) {
        tile.Wait(sum, 2 * pair + p.tiles.part(i));
        if (!meeting.Leave()) continue;
      }
    }
    tile.Store(sum, p.segments > 1 ? tile.Waiting(place) : nullptr);
  }
}

#endif  // FUSEBLOCK_SM90A

template <typename T, int kPanels, bool kBiased>
__global__ void __launch_bounds__(kManyThreads, 1)
    ManyDownKernel([[maybe_unused]] const __grid_constant__ ManyDownParams p) {
#if FUSEBLOCK_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  RunManyTokens<kPanels * kPanelRows, ManyPanelRows<kPanels, kBiased>>(
      p, SharedAddress(shared), [](const auto& pipe, const auto& params, int rank) {
        ConsumeManyDown<T, kPanels, kBiased>(pipe, params, rank);
      });
#endif
}

}  // namespace fuseblock
