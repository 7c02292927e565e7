// The CUDA launcher of swiglu_clamped (swiglu_clamped.h).
//
// A unit is N outputs and the 2N neighbours that they come from, in whole accesses where both are
// aligned. Dense operands are one long row.
#include "kernels/base/approx.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/base/gelu.cuh"
#include "kernels/base/tiles.cuh"
#include "kernels/swiglu_clamped/constants.h"
#include "kernels/swiglu_clamped/swiglu_clamped_cuda.h"

namespace fuseblock {
namespace {

constexpr int kBlock = 256;

struct ClampedParams {
  int64_t rows, cols;  // of y
  int64_t in_stride, y_stride;
  unsigned column_tiles;
};

// x sigmoid(1.702 x), as gelu.cuh's forms of GELU: max(x, 0) - |x| sigmoid(-v), v = 1.702 |x|.
__device__ float GatedFloat(float x) {
  const float t = fminf(fabsf(x), 64.0f);  // from there on t sigmoid(-v) is 0
  const float v = kSwiGluAlphaHigh * t;
  const float low = __fmaf_rn(kSwiGluAlphaLow, t, __fmaf_rn(kSwiGluAlphaHigh, t, -v));
  const NegativeExponential e = ExpOfMinus(v, low);
  // Far below 1, e^-v is nothing beside it; 2^-126 is small enough.
  const float power = PowerOfTwo(-(e.exponent < 126 ? e.exponent : 126));
  const float divisor = __fmaf_rn(e.fraction, power, 1.0f);
  return WithoutTail(x, t * e.fraction * ReciprocalApprox(divisor), e.exponent);
}

// For 16-bit outputs: e^-v is kept times 2^24, so that it is a normal number as long as the result
// may be a subnormal of BF16; v in units of ln 2 is off by 142 * 2^-24 at most.
__device__ float GatedHalf(float x) {
  constexpr float kAlphaLog2E = static_cast<float>(kSwiGluAlpha * 1.4426950408889634);
  const float t = MinOrNan(fabsf(x), 64.0f);
  const float e = Exp2Approx(__fmaf_rn(t, -kAlphaLog2E, 24.0f));
  return __fmaf_rn(-(t * e), ReciprocalApprox(e + 0x1p24f), fmaxf(x, 0.0f));
}

template <typename Out>
__device__ float Clamped(float gate, float up) {
  gate = MinOrNan(gate, kSwiGluLimit);
  up = MaxOrNan(MinOrNan(up, kSwiGluLimit), -kSwiGluLimit);
  if constexpr (std::is_same_v<Out, float>) {
    return (up + 1.0f) * (gate != gate ? gate : GatedFloat(gate));
  } else {
    return (up + 1.0f) * GatedHalf(gate);
  }
}

template <typename Out, typename In, int N, bool kVector>
__global__ void __launch_bounds__(kBlock)
    SwiGluClampedKernel(ClampedParams p, const In* gate_up, Out* y) {
  AwaitPredecessors();
  const auto [row, unit] = PositionInTiles(p.column_tiles);
  const int64_t col = unit * N;
  if (row >= p.rows || col >= p.cols) return;
  Unit<In, 2 * N> in;
  in.template Load<kVector>(gate_up + row * p.in_stride + 2 * col, 2 * (p.cols - col));
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = Clamped<Out>(ToFloat(in.v[2 * i]), ToFloat(in.v[2 * i + 1]));
  }
  StoreRounded<kVector>(values, y + row * p.y_stride + col, p.cols - col);
}

template <typename Out, typename In>
cudaError_t LaunchTyped(const FuseblockCudaRows& gate_up, const FuseblockCudaRows& y,
                        cudaStream_t stream) {
  constexpr int N = sizeof(Out) == 4 ? 2 : 4;  // 16 bytes of gate and up in one dtype
  ClampedParams p{y.rows, y.cols, gate_up.stride, y.stride, 1};
  if (IsDense(gate_up) && IsDense(y)) {
    p.cols *= p.rows;
    p.rows = 1;
  }
  const Tiles tiles = MakeTiles(p.rows, CeilDiv(p.cols, N), kBlock);
  p.column_tiles = tiles.column_tiles;
  const auto* from = static_cast<const In*>(gate_up.data);
  auto* to = static_cast<Out*>(y.data);
  if (Aligned16(gate_up) && Aligned16(y) && p.cols % N == 0) {
    return LaunchOverlapped(SwiGluClampedKernel<Out, In, N, true>, tiles.blocks, tiles.block,
                            stream, p, from, to);
  }
  return LaunchOverlapped(SwiGluClampedKernel<Out, In, N, false>, tiles.blocks, tiles.block, stream,
                          p, from, to);
}

}  // namespace

int LaunchSwiGluClamped(const FuseblockCudaRows* gate_up, const FuseblockCudaRows* y,
                        void* stream) {
  if (gate_up->cols != 2 * y->cols) return cudaErrorInvalidValue;
  if (y->rows == 0 || y->cols == 0) return cudaSuccess;
  return VisitCudaFloat(y->dtype, [&](auto out) {
    using Out = decltype(out);
    return VisitSameOrFloat(out, y->dtype, gate_up->dtype, [&](auto in) {
      return LaunchTyped<Out, decltype(in)>(*gate_up, *y, static_cast<cudaStream_t>(stream));
    });
  });
}

}  // namespace fuseblock
