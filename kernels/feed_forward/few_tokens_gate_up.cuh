// product = f(n * gate^T) * (n * up^T), or f(n * up^T + bias), rounded once: a block for each share
// of the columns and each kWidth tokens, all of K, gate and up of a column in one thread.
#pragma once

#include "kernels/feed_forward/few_tokens_ring.cuh"
#include "kernels/feed_forward/forms.cuh"

namespace fuseblock {

constexpr int kGateUpWarpgroups = 2;
constexpr int kGateUpWarps = kGateUpWarpgroups * kWarpgroupWarps;
constexpr int kGateUpThreads = (kGateUpWarps + kProducerWarps) * kWarpThreads;

struct GateUpParams {
  FewTokensPlan plan;
  const std::byte* weights;  // packed gate and up
  const std::byte* n;        // [block of tokens][tile][token][128 bytes]
  std::byte* product;        // the same
  const float* bias;         // of up, in a dense form; null: none
  int tokens;
  int tile_width;  // of n and the product: kWidth or twice that
};

#if FUSEBLOCK_SM90A

// A block's pieces in the order in which they lie and are consumed: the halves take turns.
struct GateUpPieces {
  const FewTokensPlan& plan;
  const std::byte* at;
  int tile = 0;
  int half = 0;

  __device__ int tiles() const {
    return min(plan.depth, static_cast<int>(plan.gate_up_tiles()) - tile);
  }
  __device__ uint32_t bytes() const { return tiles() * plan.half_groups(half) * kGroupBytes; }
  __device__ void Advance() {
    at += bytes();
    half ^= 1;
    if (half != 0) return;
    tile += plan.depth;
    if (tile >= plan.gate_up_tiles()) tile = 0;  // of the next part
  }
};

// Where the bias of a thread's sums of a group lies: of those of row lane / 4 of each 8 rows. It is
// brought into the L2 long before it is loaded, by a thread that has no register to spare
// meanwhile.
template <typename Form>
struct GroupBias {
  const float* data;  // null: none
  int64_t columns;

  __device__ void Prefetch(int64_t group) const {
    if constexpr (Form::kBiased) {
      if (const float* at = At(group, 0); at != nullptr) hopper::PrefetchL2(at);
    }
  }
  __device__ float Load(int64_t group, int eight) const {
    if constexpr (Form::kBiased) {
      if (const float* at = At(group, eight); at != nullptr) return *at;
    }
    return kNoBias;
  }

 private:
  __device__ const float* At(int64_t group, int eight) const {
    const int64_t column = (group * Form::kEights + eight) * 8 + threadIdx.x % kWarpThreads / 4;
    return data == nullptr || column >= columns ? nullptr : data + column;
  }
};

// 8 of a warp's columns, the chunk `chunk` of the product, of all of the block's tokens.
template <typename T, int kWidth, typename Form>
__device__ void StoreEight(const float (&sum)[kWidth / 2], int eight, float bias,
                           std::byte* product, int tile_width, int64_t chunk, int tokens) {
  const int lane = threadIdx.x % kWarpThreads;
  constexpr int kEights = kWidth / 8;  // of tokens
  constexpr int kAtOnce = kEights < 4 ? kEights : 4;
  // Of the thread's first token; 8 tokens further the swizzle is the same.
  const int first_token = (kAtOnce == 4 ? lane % 4 * 8 : 0) + lane / 4;
  std::byte* to = product + FewTokensPlan::ActivationOffset(tile_width, first_token, chunk);
#pragma unroll
  for (int first = 0; first < kEights; first += kAtOnce) {
    if (first * 8 >= tokens) return;
    uint32_t two[kAtOnce];  // columns, of token lane / 4
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      const float* d = sum + 4 * (first + e);
      two[e] = hopper::Transpose8x8(Packed<T>(Form::template Of<T>(eight, d[0], d[2], bias),
                                              Form::template Of<T>(eight, d[1], d[3], bias)));
    }
    if constexpr (kAtOnce == 4) {
      TransposeQuad(two);
      if (first_token + 8 * first < tokens) {
        *reinterpret_cast<uint4*>(to + first * 8 * kTileRowBytes) =
            make_uint4(two[0], two[1], two[2], two[3]);
      }
    } else {
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) {
        if (first_token + 8 * (first + e) < tokens) {
          *reinterpret_cast<uint32_t*>(to + (first + e) * 8 * kTileRowBytes + lane % 4 * 4) =
              two[e];
        }
      }
    }
  }
}

template <typename T, int kWidth, int kProducts, typename Form, typename Ring>
__device__ void ConsumeGateUp(const Ring& ring, const GateUpParams& p, int half) {
  hopper::SyncBlock();
  hopper::AwaitGrids();
  const BlockTokens<kWidth> tokens{p.tile_width};
  const FewTokensPlan& plan = p.plan;
  const int tiles = static_cast<int>(plan.gate_up_tiles());
  const int half_bytes = plan.half_groups(half) * kGroupBytes;  // of a tile
  const int warp = threadIdx.x / kWarpThreads % kWarpgroupWarps;
  const GroupBias<Form> bias{p.bias, plan.intermediate};
  RingReader<Ring, kGateUpWarpgroups> reader{ring, {half, 0}};
  for (int part = 0; part < plan.parts_per_block; ++part) {
    const auto first_group = [&] {
      return (int64_t{blockIdx.x} * plan.parts_per_block + part) * plan.groups +
             plan.half_first(half);
    };
    if constexpr (Form::kBiased) {
      for (int m = 0; m < kProducts; ++m) bias.Prefetch(first_group() + m * kWarpgroupWarps + warp);
    }
    float sum[kProducts][kWidth / 2];
    for (int tile = 0, in_piece = 0; tile < tiles; ++tile) {
      if (in_piece == 0) reader.AwaitPiece();
      const bool last = in_piece == plan.depth - 1 || tile == tiles - 1;
      reader.template Multiply<T, kWidth>(sum, in_piece * half_bytes, tile, tiles, last);
      in_piece = last ? 0 : in_piece + 1;
    }
    reader.Finish();
    const int64_t first = first_group();
    std::byte* product = p.product + tokens.offset(plan.intermediate / kTileK);
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
      const int group = m * kWarpgroupWarps + warp;
      if (group >= plan.half_groups(half) || first + group >= plan.all_groups) continue;
#pragma unroll
      for (int eight = 0; eight < Form::kEights; ++eight) {
        StoreEight<T, kWidth, Form>(sum[m], eight, bias.Load(first + group, eight), product,
                                    tokens.tile(), (first + group) * Form::kEights + eight,
                                    p.tokens - tokens.first());
      }
    }
  }
}

#endif  // FUSEBLOCK_SM90A

template <typename T, int kWidth, int kProducts, typename Form>
__global__ void __launch_bounds__(kGateUpThreads, 1)
    GateUpKernel([[maybe_unused]] const __grid_constant__ GateUpParams p) {
#if FUSEBLOCK_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  const Ring<kWidth, GateUpRing> ring{SharedAddress(shared)};
  const FewTokensPlan& plan = p.plan;
  const int warp = threadIdx.x / kWarpThreads;
  const int tiles = static_cast<int>(plan.gate_up_tiles());
  if (warp == kGateUpWarps) {
    const int pieces = (tiles + plan.depth - 1) / plan.depth;
    const int64_t first_part = int64_t{blockIdx.x} * plan.parts_per_block;
    ProduceWeights(ring, GateUpPieces{plan, p.weights + first_part * plan.part_bytes()},
                   plan.parts_per_block * pieces * kGateUpWarpgroups, plan.gate_up_in_flight,
                   kWarpgroupWarps, kGateUpWarps);
  } else if (warp == kGateUpWarps + 1) {
    const BlockTokens<kWidth> tokens{p.tile_width};
    ProduceActivations(ring, p.n + tokens.offset(tiles), tokens.tile_bytes(), tiles,
                       plan.parts_per_block);
  } else {
    ConsumeGateUp<T, kWidth, kProducts, Form>(ring, p, warp / kWarpgroupWarps);
  }
#endif
}

}  // namespace fuseblock
