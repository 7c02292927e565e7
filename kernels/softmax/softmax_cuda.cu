// The CUDA launcher of softmax (softmax.h).
#include "kernels/base/softmax.cuh"

namespace fuseblock {

int LaunchSoftmax(const FuseblockCudaRows* x, const FuseblockCudaRows* y, void* stream) {
  return VisitCudaFloat(y->dtype, [&](auto out) {
    return VisitSameOrFloat(out, y->dtype, x->dtype, [&](auto in) {
      using X = decltype(in);
      using Y = decltype(out);
      const PlainSource<X> source{static_cast<const X*>(x->data), x->stride};
      const SoftmaxPolicy<Y, false> policy{static_cast<Y*>(y->data), y->stride};
      return LaunchRows({y->rows, y->cols}, Aligned16(*x) && Aligned16(*y), source, policy,
                        static_cast<cudaStream_t>(stream));
    });
  });
}

}  // namespace fuseblock
