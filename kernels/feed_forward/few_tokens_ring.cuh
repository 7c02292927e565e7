// The ring in shared memory that the two kernels of few_tokens_cuda.cu share: one warp streams
// weights into it, one streams activations, warpgroups multiply what has come.
//
// A block has kConsumerWarps warps that multiply, then the weights' producer, then the
// activations'. The weights' producer starts its copies before the stream's previous kernel has
// ended (weights are constant), lets the next kernel onto the GPU, and then runs ahead of the
// consumers by a bounded number of pieces.
#pragma once

#include <type_traits>

#include "kernels/base/cuda_types.cuh"
#include "kernels/base/wgmma.cuh"
#include "kernels/feed_forward/few_tokens_plan.h"

namespace fuseblock {

constexpr int kWarpThreads = 32;
constexpr int kWarpgroupWarps = 4;
constexpr int kProducerWarps = 2;

#if FUSEBLOCK_SM90A

// The addresses in a block's shared memory.
template <int kWidth, FewTokensRing (*kShapeOf)(int)>
struct Ring {
  static constexpr FewTokensRing kShape = kShapeOf(kWidth);
  static constexpr int kWeightSlots = kShape.weight_slots;
  static constexpr int kActivationSlots = kShape.activation_slots;
  static constexpr int kActivationTiles = kShape.activation_tiles;
  static constexpr int kActivationTileBytes = kWidth * kTileRowBytes;
  static constexpr int kActivationSlotBytes = kShape.activation_slot_bytes(kWidth);
  static constexpr int kBarrier = 8;  // bytes

  uint32_t base;

  // Weights first: a product of 64 rows may read beyond its slot, where activations lie at the end.
  __device__ uint32_t weights(int slot) const { return base + slot * kPieceBytesMax; }
  __device__ uint32_t activations(int slot) const {
    return weights(kWeightSlots) + slot * kActivationSlotBytes;
  }
  __device__ uint32_t exchange() const { return activations(kActivationSlots); }
  __device__ uint32_t full_weights(int slot) const {
    return exchange() + kShape.exchange_bytes + slot * kBarrier;
  }
  __device__ uint32_t empty_weights(int slot) const { return full_weights(kWeightSlots + slot); }
  __device__ uint32_t full_activations(int slot) const {
    return empty_weights(kWeightSlots + slot);
  }
  __device__ uint32_t empty_activations(int slot) const {
    return full_activations(kActivationSlots + slot);
  }
};

// The tokens of a block, kWidth from first() on, where tiles in memory have as many or twice that.
// What only blocks of kNarrowPart tokens and more can be is known for the others when compiled.
template <int kWidth>
struct BlockTokens {
  int tile_width;

  static __device__ int first() {
    return kWidth < kNarrowPart ? 0 : static_cast<int>(blockIdx.y) * kWidth;
  }
  __device__ int tile() const { return kWidth == kNarrowPart ? tile_width : kWidth; }
  __device__ int tile_bytes() const { return tile() * kTileRowBytes; }
  // Where they begin in activations of that many tiles of K.
  static __device__ int64_t offset(int64_t tiles) {
    return FewTokensPlan::TokensOffset(first(), tiles);
  }
};

// A place in a ring of slots and the parity of the round that it is in.
template <int kSlots>
struct RingPlace {
  int slot;
  uint32_t parity;

  __device__ void Advance(int step = 1) {
    slot += step;
    if (slot >= kSlots) {
      slot -= kSlots;
      parity ^= 1;
    }
  }
};

// The weights' producer, a warp. Pieces: what to copy next, as at, bytes() and Advance(). A slot of
// weights is read by `weight_readers` warps, one of activations by `activation_readers`.
// SyncBlock() once.
template <typename Ring, typename Pieces>
__device__ void ProduceWeights(const Ring& ring, Pieces pieces, int count, int in_flight,
                               int weight_readers, int activation_readers) {
  using namespace hopper;
  const bool leads = threadIdx.x % kWarpThreads == 0;
  const uint64_t policy = EvictFirst();
  const auto issue = [&](int slot) {
    BarrierExpect(ring.full_weights(slot), pieces.bytes());
    BulkCopy(ring.weights(slot), pieces.at, pieces.bytes(), ring.full_weights(slot), policy);
    pieces.Advance();
  };
  // Two slots stay with the consumers.
  const int first = min(min(in_flight, Ring::kWeightSlots - 2), count);
  if (leads) {
    for (int slot = 0; slot < Ring::kWeightSlots; ++slot) BarrierInit(ring.full_weights(slot), 1);
    FenceBarrierInit();
    FenceAsyncProxy();
    for (int i = 0; i < first; ++i) issue(i);
    for (int slot = 0; slot < Ring::kWeightSlots; ++slot) {
      BarrierInit(ring.empty_weights(slot), weight_readers);
    }
    for (int slot = 0; slot < Ring::kActivationSlots; ++slot) {
      BarrierInit(ring.full_activations(slot), 1);
      BarrierInit(ring.empty_activations(slot), activation_readers);
    }
    FenceBarrierInit();
    FenceAsyncProxy();
  }
  __syncwarp();
  LaunchDependents();
  SyncBlock();
  if (!leads) return;
  RingPlace<Ring::kWeightSlots> landed{0, 0};
  RingPlace<Ring::kWeightSlots> place{first, 1};  // a slot's first round finds it empty
  for (int i = first; i < count; ++i) {
    BarrierWait(ring.full_weights(landed.slot), landed.parity);
    landed.Advance();
    BarrierWait(ring.empty_weights(place.slot), place.parity);
    issue(place.slot);
    place.Advance();
  }
}

// The activations' producer, a warp: the block's tokens of `tiles` tiles from `from` on, a tile
// every `stride` bytes, `rounds` times over. Where a slot has several tiles they are the block's
// alone, one after the other. SyncBlock() once.
template <typename Ring>
__device__ void ProduceActivations(const Ring& ring, const std::byte* from, int stride, int tiles,
                                   int rounds) {
  using namespace hopper;
  SyncBlock();
  AwaitGrids();
  if (threadIdx.x % kWarpThreads != 0) return;
  FenceAsyncProxy();  // the last kernel's ordinary stores, before copies of them
  RingPlace<Ring::kActivationSlots> place{0, 1};
  for (int round = 0; round < rounds; ++round) {
    for (int tile = 0; tile < tiles; tile += Ring::kActivationTiles) {
      const int count = min(Ring::kActivationTiles, tiles - tile);
      const auto bytes = static_cast<uint32_t>(count * Ring::kActivationTileBytes);
      const uint32_t full = ring.full_activations(place.slot);
      BarrierWait(ring.empty_activations(place.slot), place.parity);
      BarrierExpect(full, bytes);
      BulkCopy(ring.activations(place.slot), from + int64_t{tile} * stride, bytes, full);
      place.Advance();
    }
  }
}

// A consumer warpgroup's way through the ring; it uses every `step`-th slot of weights. A slot is
// given back when the products after it have been issued and its own have ended.
template <typename Ring, int kStep>
struct RingReader {
  const Ring& ring;
  RingPlace<Ring::kWeightSlots> weights;
  RingPlace<Ring::kActivationSlots> activations{0, 0};
  int used_weights = -1, used_activations = -1;

  // sum = or += the products of a piece's tile at `tile_offset` in the current slot with tile
  // `tile` of the activations, of `tiles`.
  template <typename T, int kWidth, int kProducts>
  __device__ void Multiply(float (&sum)[kProducts][kWidth / 2], int tile_offset, int tile,
                           int tiles, bool last_of_piece) {
    using namespace hopper;
    const int in_slot = tile % Ring::kActivationTiles;
    if (in_slot == 0) {
      BarrierWait(ring.full_activations(activations.slot), activations.parity);
    }
    const uint64_t a = TileDescriptor(ring.weights(weights.slot) + tile_offset);
    const uint64_t b =
        TileDescriptor(ring.activations(activations.slot) + in_slot * Ring::kActivationTileBytes);
    ProductFence();
#pragma unroll
    for (int k = 0; k < kTileK / 16; ++k) {
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        Product<T, kWidth>::Add(sum[m], a + m * kNext64Rows + k * kNextK16, b + k * kNextK16,
                                tile + k != 0);
      }
    }
    ProductCommit();
    ProductWait<1>();
    GiveBack();
    if (last_of_piece) {
      used_weights = weights.slot;
      weights.Advance(kStep);
    }
    if (in_slot == Ring::kActivationTiles - 1 || tile == tiles - 1) {
      used_activations = activations.slot;
      activations.Advance();
    }
  }

  __device__ void AwaitPiece() const {
    hopper::BarrierWait(ring.full_weights(weights.slot), weights.parity);
  }
  // All products have ended.
  __device__ void Finish() {
    hopper::ProductWait<0>();
    GiveBack();
  }

 private:
  __device__ void GiveBack() {
    if (threadIdx.x % kWarpThreads == 0) {
      if (used_weights >= 0) hopper::BarrierArrive(ring.empty_weights(used_weights));
      if (used_activations >= 0) hopper::BarrierArrive(ring.empty_activations(used_activations));
    }
    used_weights = used_activations = -1;
  }
};

#endif  // FUSEBLOCK_SM90A

// v[e] of lane l of a quad becomes lane e's v[l].
__device__ inline void TransposeQuad(uint32_t (&v)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool upper = threadIdx.x / 2 % 2 != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? v[i] : v[i + 1], 1);
    (odd ? v[i] : v[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[i + 2], 2);
    (upper ? v[i] : v[i + 2]) = got;
  }
}

// Two values of T as the 32 bits that they are stored in, and back.
template <typename T>
__device__ uint32_t Packed(float a, float b) {
  const float values[] = {a, b};
  Unit<T, 2> two;
  two.SetRounded(values);
  return reinterpret_cast<const uint32_t&>(two);
}
template <typename T>
__device__ float2 Unpacked(uint32_t bits) {
  const auto& two = reinterpret_cast<const Unit<T, 2>&>(bits);
  return {ToFloat(two.v[0]), ToFloat(two.v[1])};
}

}  // namespace fuseblock
