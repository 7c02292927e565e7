// The pipeline in shared memory that the two products of many_tokens_cuda.cu share: persistent
// clusters of two blocks, each with 128 tokens of a tile, the same rows of the weights in both.
//
// A block has two warpgroups that multiply, 64 tokens each, then a warp that brings weights and one
// that brings activations. Each block of a cluster copies half of the weights' rows into both, so
// that the L2 is asked for them once. A slot is free when the warpgroups of both blocks have used
// it: what one block copies into it would overwrite the other's, too.
#pragma once

#include "kernels/base/wgmma.cuh"
#include "kernels/feed_forward/few_tokens_plan.h"
#include "kernels/feed_forward/few_tokens_ring.cuh"

namespace fuseblock {

constexpr int kManyWarpgroups = 2;  // that multiply
constexpr int kManyConsumers = kManyWarpgroups * kWarpgroupWarps * kWarpThreads;
constexpr int kManyThreads = kManyConsumers + kWarpgroupWarps * kWarpThreads;
// Registers of a thread that copies, and of one that multiplies.
constexpr int kCopyRegisters = 40, kProductRegisters = 232;

// The tiles of a product, of a cluster's tokens and a stage's columns each, and the parts of K that
// each has: every cluster takes one and then every so many further ones, in an order in which
// `together` tiles of tokens go along the weights side by side.
struct ManyTiles {
  int columns, tokens;
  int together;
  int parts;    // of K
  int k_tiles;  // of a part

  constexpr int count() const { return columns * tokens * parts; }
  constexpr int part(int i) const { return i % parts; }
  // The place along the weights and along the tokens.
  constexpr int column(int i) const { return InGroup(i) / Side(i); }
  constexpr int token(int i) const { return Group(i) + InGroup(i) % Side(i); }

 private:
  constexpr int Group(int i) const { return i / parts / (together * columns) * together; }
  constexpr int InGroup(int i) const { return i / parts - Group(i) * columns; }
  constexpr int Side(int i) const {
    return tokens - Group(i) < together ? tokens - Group(i) : together;
  }
};

// What both products take.
struct ManyParams {
  FewTokensPlan plan;
  const std::byte* weights;      // packed
  const std::byte* activations;  // [block of tokens][tile][token][128 bytes]
  ManyTiles tiles;
  int tokens, token_blocks;

  constexpr int all_k_tiles() const { return tiles.parts * tiles.k_tiles; }
  // A cluster's tiles: the first, and what the next is more.
  __device__ int first_tile() const { return static_cast<int>(blockIdx.x) / kClusterBlocks; }
  __device__ int tile_step() const { return static_cast<int>(gridDim.x) / kClusterBlocks; }
};

template <int kColumns>
constexpr int kManyStageBytes = (kTokenBlock + kColumns) * kTileRowBytes;
template <int kColumns>
constexpr int kManyStages = kSharedBytesMax / (kManyStageBytes<kColumns> + 16);
template <int kColumns>
constexpr int kManySharedBytes = kManyStages<kColumns>*(kManyStageBytes<kColumns> + 16);

#if FUSEBLOCK_SM90A

// The addresses in a block's shared memory.
template <int kColumns>
struct ManyPipe {
  static constexpr int kStages = kManyStages<kColumns>;

  uint32_t base;

  __device__ uint32_t activations(int slot) const {
    return base + slot * kManyStageBytes<kColumns>;
  }
  __device__ uint32_t weights(int slot) const {
    return activations(slot) + kTokenBlock * kTileRowBytes;
  }
  __device__ uint32_t full(int slot) const { return activations(kStages) + slot * 8; }
  __device__ uint32_t empty(int slot) const { return full(kStages + slot); }

  // By one thread, before the cluster's first meeting.
  __device__ void Init() const {
    using namespace hopper;
    for (int slot = 0; slot < kStages; ++slot) {
      BarrierInit(full(slot), 2);  // both producers
      BarrierInit(empty(slot), kClusterBlocks * kManyWarpgroups);
    }
    FenceBarrierInit();
    FenceAsyncProxy();
  }
};

// A warp: every tile's weights. Rows: a lane's share of a tile's rows, as at (null: none), offset,
// bytes and Advance() to the next tile of K; Rows::Bytes(params, column) of both blocks' rows.
template <int kColumns, typename Rows, typename Params>
__device__ void ProduceManyWeights(const ManyPipe<kColumns>& pipe, const Params& p, int rank) {
  using namespace hopper;
  constexpr uint16_t kBoth = (1 << kClusterBlocks) - 1;
  const int lane = threadIdx.x % kWarpThreads;
  const uint64_t policy = EvictNormal();
  RingPlace<ManyPipe<kColumns>::kStages> place{0, 1};  // a slot's first round finds it empty
  for (int i = p.first_tile(); i < p.tiles.count(); i += p.tile_step()) {
    const int column = p.tiles.column(i);
    Rows rows(p, column, p.tiles.part(i), rank, lane);
    const uint32_t bytes = Rows::Bytes(p, column);
    for (int k = 0; k < p.tiles.k_tiles; ++k) {
      BarrierWait(pipe.empty(place.slot), place.parity);
      if (lane == 0) BarrierExpect(pipe.full(place.slot), bytes);
      if (rows.bytes != 0) {
        BulkCopyToCluster(pipe.weights(place.slot) + rows.offset, rows.at, rows.bytes,
                          pipe.full(place.slot), kBoth, policy);
      }
      rows.Advance();
      place.Advance();
    }
  }
}

// A warp: this block's tokens of every tile, once the kernel before has made them.
template <int kColumns, typename Rows, typename Params>
__device__ void ProduceManyActivations(const ManyPipe<kColumns>& pipe, const Params& p, int rank) {
  using namespace hopper;
  AwaitGrids();
  const bool leads = threadIdx.x % kWarpThreads == 0;
  if (leads) FenceAsyncProxy();  // the last kernel's ordinary stores, before copies of them
  constexpr int kBytes = kTokenBlock * kTileRowBytes;
  RingPlace<ManyPipe<kColumns>::kStages> place{0, 1};
  for (int i = p.first_tile(); i < p.tiles.count(); i += p.tile_step()) {
    // The last tile's second block may have no tokens; whatever it multiplies is not stored.
    const int block = min(p.tiles.token(i) * kClusterBlocks + rank, p.token_blocks - 1);
    const int tile = block * p.all_k_tiles() + p.tiles.part(i) * p.tiles.k_tiles;
    const std::byte* from = p.activations + int64_t{tile} * kBytes;
    for (int k = 0; k < p.tiles.k_tiles; ++k, from += kBytes) {
      BarrierWait(pipe.empty(place.slot), place.parity);
      if (leads) {
        BarrierExpect(pipe.full(place.slot), kBytes);
        BulkCopy(pipe.activations(place.slot), from, kBytes, pipe.full(place.slot));
      }
      place.Advance();
    }
    Rows::Prefetch(p, p.tiles.column(i), block);
  }
}

// Has the value computed here, in the shadow of the products, and not after them.
__device__ inline void KeepHere(int& value) { asm volatile("" : "+r"(value)); }

// A warpgroup's way through the pipeline.
template <int kColumns>
struct ManyReader {
  const ManyPipe<kColumns>& pipe;
  uint32_t peer;  // the other block's rank
  RingPlace<ManyPipe<kColumns>::kStages> place{0, 0};
  int used = -1;

  // sum = the products of `k_tiles` tiles.
  template <typename T>
  __device__ void Multiply(float (&sum)[kColumns / 2], int k_tiles) {
    using namespace hopper;
    const int warpgroup = threadIdx.x / (kWarpgroupWarps * kWarpThreads);
    for (int k = 0; k < k_tiles; ++k) {
      const uint64_t a =
          TileDescriptor(pipe.activations(place.slot)) + uint64_t{kNext64Rows} * warpgroup;
      const uint64_t b = TileDescriptor(pipe.weights(place.slot));
      BarrierWait(pipe.full(place.slot), place.parity);
      ProductFence();
#pragma unroll
      for (int q = 0; q < kTileK / 16; ++q) {
        Product<T, kColumns>::Add(sum, a + q * kNextK16, b + q * kNextK16, k + q != 0);
      }
      ProductCommit();
      ProductWait<1>();
      GiveBack();
      used = place.slot;
      place.Advance();
    }
    ProductWait<0>();
    GiveBack();
  }

 private:
  __device__ void GiveBack() {
    const int thread = threadIdx.x % (kWarpgroupWarps * kWarpThreads);
    if (used >= 0) {
      if (thread == 0) hopper::BarrierArrive(pipe.empty(used));
      if (thread == kWarpThreads) {
        hopper::BarrierArriveAt(hopper::ClusterAddress(pipe.empty(used), peer));
      }
    }
    used = -1;
  }
};

// The kernels' body: consume(pipe, p, rank) is what the warpgroups that multiply do.
template <int kColumns, typename Rows, typename Params, typename Consume>
__device__ void RunManyTokens(const Params& p, uint32_t shared, Consume consume) {
  const ManyPipe<kColumns> pipe{shared};
  constexpr int kConsumerWarps = kManyConsumers / kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int rank = static_cast<int>(hopper::ClusterRank());
  if (threadIdx.x == 0) pipe.Init();
  hopper::ClusterArrive();
  hopper::ClusterWait();
  hopper::LaunchDependents();
  if (warp >= kConsumerWarps) {
    hopper::GiveUpRegisters<kCopyRegisters>();
    if (warp == kConsumerWarps) {
      ProduceManyWeights<kColumns, Rows>(pipe, p, rank);
    } else if (warp == kConsumerWarps + 1) {
      ProduceManyActivations<kColumns, Rows>(pipe, p, rank);
    }
  } else {
    hopper::TakeRegisters<kProductRegisters>();
    consume(pipe, p, rank);
  }
  // The other block copies into this one, and arrives at its barriers, until its own end.
  __syncwarp();
  hopper::ClusterArrive();
  hopper::ClusterWait();
}

#endif  // FUSEBLOCK_SM90A

}  // namespace fuseblock
