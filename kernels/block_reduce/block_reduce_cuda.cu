// The CUDA launcher of block_reduce (block_reduce.h).
#include <algorithm>

#include "kernels/base/row_reduce.cuh"

namespace fuseblock {
namespace {

constexpr int64_t kThreadsMax = 1024;

template <typename X, typename Y, typename Op>
__global__ void __launch_bounds__(kThreadsMax)
    BlockReduceKernel(int64_t cols, const X* x, int64_t x_stride, Y* y, int64_t y_stride, Op op) {
  AwaitPredecessors();
  __shared__ float scratch[kReduceScratch];
  const int64_t row = blockIdx.x;
  const float own = OwnElements(x + row * x_stride, cols, static_cast<int>(threadIdx.x),
                                static_cast<int>(blockDim.x), op);
  const float result = BlockReduce(own, op, scratch);
  if (threadIdx.x == 0) y[row * y_stride] = FromFloat<Y>(result);
}

}  // namespace

int LaunchBlockReduce(const FuseblockCudaRows* x, int max, const FuseblockCudaRows* y,
                      void* stream) {
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>(x->cols, 1, kThreadsMax));
  return VisitRowReduce(*x, max != 0, *y, [&](auto in, auto out, auto op) {
    using X = decltype(in);
    using Y = decltype(out);
    return LaunchOverlapped(BlockReduceKernel<X, Y, decltype(op)>, x->rows, dim3(threads),
                            static_cast<cudaStream_t>(stream), x->cols,
                            static_cast<const X*>(x->data), x->stride, static_cast<Y*>(y->data),
                            y->stride, op);
  });
}

}  // namespace fuseblock
