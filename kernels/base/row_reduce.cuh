// The launch of a kernel that reduces rows (row_reduce.h).
#pragma once

#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/base/reduce.cuh"
#include "kernels/base/row_reduce_cuda.h"

namespace fuseblock {

// Calls launch(X{}, Y{}, Op()) with the operands' types and the operation's.
template <typename F>
cudaError_t VisitRowReduce(const FuseblockCudaRows& x, bool max, const FuseblockCudaRows& y,
                           F&& launch) {
  return VisitCudaFloat(x.dtype, [&](auto in) {
    return VisitSameOrFloat(in, x.dtype, y.dtype, [&](auto out) {
      return max ? launch(in, out, Max()) : launch(in, out, Sum());
    });
  });
}

// What thread `first` of `threads` has of a row of `cols` elements: every threads-th, in order.
template <typename X, typename Op>
__device__ float OwnElements(const X* x, int64_t cols, int first, int threads, Op op) {
  float value = Op::Identity();
  for (int64_t col = first; col < cols; col += threads) value = op(value, ToFloat(x[col]));
  return value;
}

}  // namespace fuseblock
