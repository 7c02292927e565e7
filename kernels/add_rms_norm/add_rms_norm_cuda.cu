// The CUDA launcher of add_rms_norm (add_rms_norm.h).
#include "kernels/add_rms_norm/add_rms_norm_cuda.h"
#include "kernels/base/rms_norm.cuh"
#include "kernels/base/sum_source.cuh"

namespace fuseblock {

int LaunchAddRmsNorm(const FuseblockCudaRows* x, const FuseblockCudaRows* r, const void* weight,
                     int weight_dtype, float eps, float weight_offset, int normalised_first,
                     int hf_sum, const FuseblockCudaRows* y, const FuseblockCudaRows* residual_out,
                     void* stream) {
  const int float_dtype = static_cast<int>(DType::kF32);
  if (x->dtype != y->dtype || r->dtype != y->dtype) return cudaErrorInvalidValue;
  if (residual_out != nullptr && residual_out->dtype != y->dtype &&
      residual_out->dtype != float_dtype) {
    return cudaErrorInvalidValue;
  }
  if (weight == nullptr) weight_dtype = y->dtype;
  const RmsParams params{eps, weight_offset, normalised_first != 0};
  return VisitCudaFloat(y->dtype, [&](auto value) {
    using T = decltype(value);
    return VisitSameOrFloat(value, y->dtype, weight_dtype, [&](auto w) {
      using Source = SumSource<T>;
      Source source{static_cast<T*>(x->data), static_cast<T*>(r->data), x->stride, r->stride};
      source.rounded = hf_sum != 0;
      if (residual_out != nullptr) {
        source.residual_out = residual_out->data;
        source.residual_out_stride = residual_out->stride;
        source.residual_out_float = residual_out->dtype == float_dtype;
      }
      const bool aligned =
          Aligned16(*x) && Aligned16(*r) && (residual_out == nullptr || Aligned16(*residual_out));
      return LaunchRmsRows<T, decltype(w)>(*y, weight, params, aligned, source,
                                           static_cast<cudaStream_t>(stream));
    });
  });
}

}  // namespace fuseblock
