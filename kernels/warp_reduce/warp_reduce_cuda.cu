// The CUDA launcher of warp_reduce (warp_reduce.h).
#include "kernels/base/row_reduce.cuh"

namespace fuseblock {
namespace {

constexpr int kRowsPerBlock = 8;

template <typename X, typename Y, typename Op>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp)
    WarpReduceKernel(int64_t rows, int64_t cols, const X* x, int64_t x_stride, Y* y,
                     int64_t y_stride, Op op) {
  AwaitPredecessors();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int lanes = cols < 1 ? 1 : cols < kWarp ? static_cast<int>(cols) : kWarp;
  if (row >= rows || lane >= lanes) return;  // those that hold nothing take no part
  const float own = OwnElements(x + row * x_stride, cols, lane, kWarp, op);
  const float result = WarpReduce(own, op, lanes);
  if (lane == 0) y[row * y_stride] = FromFloat<Y>(result);
}

}  // namespace

int LaunchWarpReduce(const FuseblockCudaRows* x, int max, const FuseblockCudaRows* y,
                     void* stream) {
  return VisitRowReduce(*x, max != 0, *y, [&](auto in, auto out, auto op) {
    using X = decltype(in);
    using Y = decltype(out);
    return LaunchOverlapped(WarpReduceKernel<X, Y, decltype(op)>, CeilDiv(x->rows, kRowsPerBlock),
                            dim3(kRowsPerBlock * kWarp), static_cast<cudaStream_t>(stream), x->rows,
                            x->cols, static_cast<const X*>(x->data), x->stride,
                            static_cast<Y*>(y->data), y->stride, op);
  });
}

}  // namespace fuseblock
