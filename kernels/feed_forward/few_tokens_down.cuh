// y = (x (+ residual) +) product * down^T (+ bias): a block for each panel of 64 outputs, segment
// of K and kWidth tokens.
//
// The two blocks of a panel are a cluster, so that they are on the GPU at the same time whatever
// else runs there: each sends the other half of its sums into the other's shared memory, and
// finishes one half.
#pragma once

#include "kernels/feed_forward/down_operands.cuh"
#include "kernels/feed_forward/few_tokens_ring.cuh"
#include "kernels/feed_forward/forms.cuh"

namespace fuseblock {

constexpr int kDownWarps = kWarpgroupWarps;
constexpr int kDownThreads = (kDownWarps + kProducerWarps) * kWarpThreads;

struct DownParams : DownOperands {
  FewTokensPlan plan;
  const std::byte* weights;  // packed down
  const std::byte* product;  // [block of tokens][tile][token][128 bytes]
  int tokens;
  int tile_width;  // of the product: kWidth or twice that
};

#if FUSEBLOCK_SM90A

struct DownPieces {
  const std::byte* at;

  __device__ uint32_t bytes() const { return kPanelDepth * kPanelTileBytes; }
  __device__ void Advance() { at += bytes(); }
};

// A thread's share of the outputs of one half (rows 8 half .. 8 half + 7 of each warp's 16), two
// of them for every 8 tokens.
template <typename T, int kWidth>
struct DownHalf {
  static constexpr int kEights = kWidth / 8;

  int first_token;  // of the block
  int first_row;    // of the warp's half
  float bias;       // of row first_row + lane / 4
  uint32_t x[kEights], residual[kEights];

  // Rows first_row + 2 (lane % 4) and the next, of the block's token 8 j + lane / 4.
  __device__ void Load(const DownParams& p) {
    const int lane = threadIdx.x % kWarpThreads;
    const int row = first_row + lane % 4 * 2;
    bias = p.bias == nullptr ? kNoBias : p.bias[first_row + lane / 4];
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const int64_t token = first_token + 8 * j + lane / 4;
      x[j] = residual[j] = 0;
      if (token >= p.tokens) continue;
      if (p.x != nullptr) x[j] = At(p.x, token * p.x_stride + row);
      if (p.residual != nullptr) residual[j] = At(p.residual, token * p.residual_stride + row);
    }
  }

  // sum: row first_row + lane / 4, the block's tokens 8 j + 2 (lane % 4) and the next.
  __device__ void Store(const DownParams& p, int j, float2 sum) const {
    const int lane = threadIdx.x % kWarpThreads;
    sum = {sum.x + bias, sum.y + bias};
    if (p.x != nullptr) {
      const float2 h = Unpacked<T>(hopper::Transpose8x8(x[j]));
      float2 add = h;
      if (p.residual != nullptr) {
        const float2 r = Unpacked<T>(hopper::Transpose8x8(residual[j]));
        add = {h.x + r.x, h.y + r.y};
      }
      sum = {add.x + sum.x, add.y + sum.y};
    }
    if (p.y_float) {
      float* y = static_cast<float*>(p.y) + first_row + lane / 4;
      const int64_t token = first_token + 8 * j + lane % 4 * 2;
      if (token < p.tokens) y[token * p.y_stride] = sum.x;
      if (token + 1 < p.tokens) y[(token + 1) * p.y_stride] = sum.y;
      return;
    }
    const uint32_t two = hopper::Transpose8x8(Packed<T>(sum.x, sum.y));
    const int64_t token = first_token + 8 * j + lane / 4;
    if (token < p.tokens) {
      T* y = static_cast<T*>(p.y) + token * p.y_stride + first_row + lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(y) = two;
    }
  }

 private:
  static __device__ uint32_t At(const void* data, int64_t offset) {
    return *reinterpret_cast<const uint32_t*>(static_cast<const T*>(data) + offset);
  }
};

// Sends the half that the other block of the cluster finishes, and gets from it the rest of the
// own: received[j] for every 8 tokens.
template <int kWidth, typename Ring>
__device__ void ExchangeHalves(const Ring& ring, const float (&sum)[kWidth / 2], int rank,
                               int tokens, float2 (&received)[kWidth / 8]) {
  using namespace hopper;
  constexpr int kThreads = kDownWarps * kWarpThreads;
  const auto place = [&](int j) {
    return ring.exchange() + (j * kThreads + threadIdx.x) * sizeof(float2);
  };
  ClusterWait();  // the other block has started
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    if (8 * j >= tokens) break;
    const float2 theirs =
        rank == 0 ? float2{sum[4 * j + 2], sum[4 * j + 3]} : float2{sum[4 * j], sum[4 * j + 1]};
    ClusterStore(ClusterAddress(place(j), 1 - rank), theirs);
  }
  ClusterArrive();
  ClusterWait();
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    if (8 * j >= tokens) break;
    received[j] = SharedLoad(place(j));
  }
}

template <typename T, int kWidth, int kSegments, typename Ring>
__device__ void ConsumeDown(const Ring& ring, const DownParams& p) {
  hopper::SyncBlock();
  hopper::AwaitGrids();
  const int warp = threadIdx.x / kWarpThreads;
  const int segment = blockIdx.x % kSegments;
  const int first_token = BlockTokens<kWidth>::first();
  const int tokens_here = p.tokens - first_token;
  const int first_row = static_cast<int>(blockIdx.x) / kSegments * kPanelRows + warp * 16;
  // Loaded long before they are used.
  constexpr int kHalves = kSegments == 1 ? 2 : 1;
  DownHalf<T, kWidth> halves[kHalves];
#pragma unroll
  for (int i = 0; i < kHalves; ++i) {
    halves[i].first_token = first_token;
    halves[i].first_row = first_row + 8 * (kSegments == 1 ? i : segment);
    halves[i].Load(p);
  }
  float sum[1][kWidth / 2];
  const int tiles = static_cast<int>(p.plan.down_tiles());
  RingReader<Ring, 1> reader{ring, {0, 0}};
  for (int tile = 0; tile < tiles; tile += kPanelDepth) {
    reader.AwaitPiece();
#pragma unroll
    for (int i = 0; i < kPanelDepth; ++i) {
      reader.template Multiply<T, kWidth>(sum, i * kPanelTileBytes, tile + i, tiles,
                                          i == kPanelDepth - 1);
    }
  }
  reader.Finish();
  if constexpr (kSegments == 1) {
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      if (8 * j >= tokens_here) return;
      halves[0].Store(p, j, {sum[0][4 * j], sum[0][4 * j + 1]});
      halves[1].Store(p, j, {sum[0][4 * j + 2], sum[0][4 * j + 3]});
    }
  } else {
    float2 received[kWidth / 8];
    ExchangeHalves<kWidth>(ring, sum[0], segment, tokens_here, received);
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      if (8 * j >= tokens_here) return;
      const float2 own = segment == 0 ? float2{sum[0][4 * j], sum[0][4 * j + 1]}
                                      : float2{sum[0][4 * j + 2], sum[0][4 * j + 3]};
      // Of two addends the order does not matter.
      halves[0].Store(p, j, {own.x + received[j].x, own.y + received[j].y});
    }
  }
}

#endif  // FUSEBLOCK_SM90A

template <typename T, int kWidth, int kSegments>
__global__ void __launch_bounds__(kDownThreads, 1)
    DownKernel([[maybe_unused]] const __grid_constant__ DownParams p) {
#if FUSEBLOCK_SM90A
  static_assert(kSegments == 1 || kSegments == 2);
  extern __shared__ __align__(1024) std::byte shared[];
  const Ring<kWidth, DownRing> ring{SharedAddress(shared)};
  const int warp = threadIdx.x / kWarpThreads;
  const int tiles = static_cast<int>(p.plan.down_tiles());
  if constexpr (kSegments > 1) hopper::ClusterArrive();  // this block has started
  if (warp < kDownWarps) {
    ConsumeDown<T, kWidth, kSegments>(ring, p);
    return;
  }
  if (warp == kDownWarps) {
    const int64_t bytes = int64_t{tiles} * kPanelTileBytes;
    ProduceWeights(ring, DownPieces{p.weights + blockIdx.x * bytes}, tiles / kPanelDepth,
                   p.plan.down_in_flight, kDownWarps, kDownWarps);
  } else {
    const BlockTokens<kWidth> tokens{p.tile_width};
    const int64_t first_tile = int64_t{blockIdx.x % kSegments} * tiles;
    ProduceActivations(
        ring,
        p.product + tokens.offset(int64_t{kSegments} * tiles) + first_tile * tokens.tile_bytes(),
        tokens.tile_bytes(), tiles, 1);
  }
  if constexpr (kSegments > 1) {  // the meetings of ExchangeHalves are of all threads
    __syncwarp();
    hopper::ClusterWait();
    hopper::ClusterArrive();
    hopper::ClusterWait();
  }
#endif
}

}  // namespace fuseblock
