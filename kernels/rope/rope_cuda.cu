// The CUDA launcher of rope (rope.h): q's heads and k's in one launch.
//
// A unit is two chunks of N columns of a head, `half` apart, loaded and stored by one thread: with
// halves N pairs lie across the two, with neighbours N / 2 pairs within each. A block takes a few
// tokens' heads at the same units, so its threads share the tokens' cos and sin: each loads its
// columns, then computes a few of them (FP64 angle, angle.h) into shared memory while the loads are
// under way, then turns. Nothing but q and k is read that is not a few bytes per token.
#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/rope/angle.h"
#include "kernels/rope/rope_cuda.h"

namespace fuseblock {
namespace {

constexpr int kBlock = 256;
constexpr int64_t kBlocksAimed = 264;  // two for every multiprocessor of a large GPU

struct RopeParams {
  FuseblockRopeHeads q, k;
  const int64_t* positions;
  const double* inverse_frequencies;
  double attention_factor;
  int64_t tokens, head_dim;
  int64_t pairs;    // r / 2
  int64_t turning;  // units that turn; those after them copy
  int64_t copying;
  unsigned unit_tiles, head_tiles;
};

// See angle.h.
__device__ float2 TurnOf(double angle, double factor) {
  const double shifted = fma(angle, kTwoOverPi, kRoundToWhole);
  const double whole = shifted - kRoundToWhole;
  double r = fma(-whole, kHalfPiHigh, angle);
  r = fma(-whole, kHalfPiMiddle, r);
  r = fma(-whole, kHalfPiLow, r);
  const double square = r * r;
  double s = fma(kSin11, square, kSin9);
  s = fma(s, square, kSin7);
  s = fma(s, square, kSin5);
  s = fma(s, square, kSin3);
  s = fma(r * square, s, r);
  double c = fma(kCos10, square, kCos8);
  c = fma(c, square, kCos6);
  c = fma(c, square, kCos4);
  c = fma(c, square, kCos2);
  c = fma(c, square, 1.0);
  const int quarter = __double2loint(shifted);
  const float cosine = __double2float_rn(factor * ((quarter & 1) != 0 ? s : c));
  const float sine = __double2float_rn(factor * ((quarter & 1) != 0 ? c : s));
  return {((quarter + 1) & 2) != 0 ? -cosine : cosine, (quarter & 2) != 0 ? -sine : sine};
}

struct Turned {
  float first, second;
};

__device__ inline Turned Turn(float a, float b, float2 turn) {
  return {fmaf(a, turn.x, -(b * turn.y)), fmaf(b, turn.x, a * turn.y)};
}

// A unit's columns and pairs.
template <int N, bool kNeighbours>
struct UnitOf {
  static constexpr bool kWithin = kNeighbours && N > 1;  // pairs lie within the chunks

  __device__ static int64_t First(int64_t unit) {
    return kNeighbours && N == 1 ? 2 * unit : unit * N;
  }
  __device__ static int64_t Second(const RopeParams& p, int64_t unit) {
    return kNeighbours && N == 1 ? 2 * unit + 1 : p.pairs + unit * N;
  }
  // The i-th of its N pairs.
  __device__ static int64_t Pair(const RopeParams& p, int64_t unit, int i) {
    if constexpr (kWithin) {
      constexpr int kChunk = N / 2;
      return unit * kChunk + (i < kChunk ? i : p.pairs / 2 + i - kChunk);
    }
    return unit * N + i;
  }
};

template <typename T, int N, bool kNeighbours>
__device__ void TurnUnit(Unit<T, N>& a, Unit<T, N>& b, const float2* turns, unsigned stride) {
  const auto turn = [&](T& first, T& second, int i) {
    const Turned turned = Turn(ToFloat(first), ToFloat(second), turns[i * stride]);
    first = FromFloat<T>(turned.first);
    second = FromFloat<T>(turned.second);
  };
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (!UnitOf<N, kNeighbours>::kWithin) {
      turn(a.v[i], b.v[i], i);
    } else if (i < N / 2) {
      turn(a.v[2 * i], a.v[2 * i + 1], i);
    } else {
      turn(b.v[2 * i - N], b.v[2 * i - N + 1], i);
    }
  }
}

template <typename T, int N, bool kNeighbours>
__global__ void __launch_bounds__(kBlock) RopeKernel(const RopeParams p) {
  AwaitPredecessors();
  using Of = UnitOf<N, kNeighbours>;
  __shared__ float2 shared_turns[kBlock * N];  // [token][i][unit]
  const unsigned unit_tile = blockIdx.x % p.unit_tiles;
  const unsigned tile = blockIdx.x / p.unit_tiles;
  const unsigned token_tile = tile / p.head_tiles;
  const int64_t unit = static_cast<int64_t>(unit_tile) * blockDim.x + threadIdx.x;
  const int64_t head =
      static_cast<int64_t>(tile - token_tile * p.head_tiles) * blockDim.y + threadIdx.y;
  const int64_t token = static_cast<int64_t>(token_tile) * blockDim.z + threadIdx.z;
  const bool here = token < p.tokens && unit < p.turning + p.copying;
  const bool turning = unit < p.turning;
  const bool mine = here && head < p.q.heads + p.k.heads;

  int64_t first = 0, second = 0;
  Unit<T, N> a, b;
  T* out = nullptr;
  if (mine) {
    const bool of_q = head < p.q.heads;
    const FuseblockRopeHeads& heads = of_q ? p.q : p.k;
    const int64_t index = of_q ? head : head - p.q.heads;
    const T* in = static_cast<const T*>(heads.in) + token * heads.in_token_stride +
                  index * heads.in_head_stride;
    out =
        static_cast<T*>(heads.out) + token * heads.out_token_stride + index * heads.out_head_stride;
    if (turning) {
      first = Of::First(unit);
      second = Of::Second(p, unit);
    } else {
      first = 2 * p.pairs + (unit - p.turning) * N;
      second = first + p.copying * N;
    }
    a.LoadAligned(in + first);
    if (second < p.head_dim) b.LoadAligned(in + second);
  }
  float2* turns = shared_turns + threadIdx.z * N * blockDim.x + threadIdx.x;
  if (here && turning) {
    for (unsigned i = threadIdx.y; i < N; i += blockDim.y) {
      const double frequency = p.inverse_frequencies[Of::Pair(p, unit, static_cast<int>(i))];
      const double position = static_cast<double>(p.positions[token]);
      turns[i * blockDim.x] = TurnOf(position * frequency, p.attention_factor);
    }
  }
  __syncthreads();
  if (!mine) return;
  if (turning) TurnUnit<T, N, kNeighbours>(a, b, turns, blockDim.x);
  a.StoreAligned(out + first);
  if (second < p.head_dim) b.StoreAligned(out + second);
}

// Whether every head starts on a 16-byte boundary, read and written.
bool Aligned(const FuseblockRopeHeads& heads, int64_t tokens, int size) {
  return Aligned16(heads.in, tokens, heads.in_token_stride, size) &&
         Aligned16(heads.in, heads.heads, heads.in_head_stride, size) &&
         Aligned16(heads.out, tokens, heads.out_token_stride, size) &&
         Aligned16(heads.out, heads.heads, heads.out_head_stride, size);
}

template <typename T, int N, bool kNeighbours>
cudaError_t LaunchWidth(RopeParams p, cudaStream_t stream) {
  const bool in_place = p.q.in == p.q.out && p.k.in == p.k.out;
  const int64_t rest = in_place ? 0 : p.head_dim - 2 * p.pairs;
  p.turning = p.pairs / N;
  p.copying = CeilDiv(rest, 2 * N);
  const int64_t units = p.turning + p.copying, heads = p.q.heads + p.k.heads;
  if (units == 0 || heads == 0) return cudaSuccess;
  // A block is units x heads x tokens of about one size each, so that none is mostly empty.
  const int64_t lanes = CeilDiv(units, CeilDiv(units, kBlock));
  const int64_t head_tiles = CeilDiv(heads, kBlock / lanes);
  const int64_t block_heads = CeilDiv(heads, head_tiles);
  const int64_t unit_tiles = CeilDiv(units, lanes);
  if (unit_tiles > INT32_MAX || head_tiles > INT32_MAX) return cudaErrorInvalidValue;
  int64_t block_tokens = kBlock / (lanes * block_heads);
  if (block_tokens > 64) block_tokens = 64;  // a block's limit in z
  while (block_tokens > 1 &&
         CeilDiv(p.tokens, block_tokens) * head_tiles * unit_tiles < kBlocksAimed) {
    block_tokens = (block_tokens + 1) / 2;
  }
  p.unit_tiles = static_cast<unsigned>(unit_tiles);
  p.head_tiles = static_cast<unsigned>(head_tiles);
  const dim3 block(static_cast<unsigned>(lanes), static_cast<unsigned>(block_heads),
                   static_cast<unsigned>(block_tokens));
  const int64_t blocks = CeilDiv(p.tokens, block_tokens) * head_tiles * unit_tiles;
  return LaunchOverlapped(RopeKernel<T, N, kNeighbours>, blocks, block, stream, p);
}

template <typename T, bool kNeighbours>
cudaError_t LaunchTyped(const RopeParams& p, cudaStream_t stream) {
  constexpr int kWide = 16 / sizeof(T);
  if (p.pairs % kWide == 0 && p.head_dim % kWide == 0 && Aligned(p.q, p.tokens, sizeof(T)) &&
      (p.k.heads == 0 || Aligned(p.k, p.tokens, sizeof(T)))) {
    return LaunchWidth<T, kWide, kNeighbours>(p, stream);
  }
  return LaunchWidth<T, 1, kNeighbours>(p, stream);
}

}  // namespace

int LaunchRope(const FuseblockRopeCall* call, void* stream) {
  if (call->rotary_dims % 2 != 0 || call->rotary_dims > call->head_dim) {
    return cudaErrorInvalidValue;
  }
  if (call->tokens == 0) return cudaSuccess;
  RopeParams p{};
  p.q = call->q;
  p.k = call->k;
  p.positions = call->positions;
  p.inverse_frequencies = call->inverse_frequencies;
  p.attention_factor = call->attention_factor;
  p.tokens = call->tokens;
  p.head_dim = call->head_dim;
  p.pairs = call->rotary_dims / 2;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  return VisitCudaFloat(call->dtype, [&](auto value) {
    using T = decltype(value);
    return call->neighbours != 0 ? LaunchTyped<T, true>(p, cuda_stream)
                                 : LaunchTyped<T, false>(p, cuda_stream);
  });
}

}  // namespace fuseblock
