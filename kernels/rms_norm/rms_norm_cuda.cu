// The CUDA launcher of rms_norm (rms_norm.h).
#include "kernels/base/rms_norm.cuh"
#include "kernels/rms_norm/rms_norm_cuda.h"

namespace fuseblock {

int LaunchRmsNorm(const FuseblockCudaRows* x, const void* weight, int weight_dtype, float eps,
                  float weight_offset, int normalised_first, const FuseblockCudaRows* y,
                  void* stream) {
  if (weight == nullptr) weight_dtype = y->dtype;
  const RmsParams params{eps, weight_offset, normalised_first != 0};
  return VisitCudaFloat(y->dtype, [&](auto out) {
    return VisitSameOrFloat(out, y->dtype, x->dtype, [&](auto in) {
      return VisitSameOrFloat(out, y->dtype, weight_dtype, [&](auto w) {
        const PlainSource<decltype(in)> source{static_cast<decltype(in)*>(x->data), x->stride};
        return LaunchRmsRows<decltype(out), decltype(w)>(*y, weight, params, Aligned16(*x), source,
                                                         static_cast<cudaStream_t>(stream));
      });
    });
  });
}

}  // namespace fuseblock
