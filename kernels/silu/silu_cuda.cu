// The CUDA launcher of silu (silu.h).
#include "kernels/base/elementwise.cuh"
#include "kernels/base/silu.cuh"
#include "kernels/silu/silu_cuda.h"

namespace fuseblock {
namespace {

template <typename Out>
struct SiluFunction {
  __device__ float operator()(float x) const { return SiluFor<Out>(x); }
};

}  // namespace

int LaunchSilu(const FuseblockCudaRows* x, const FuseblockCudaRows* y, void* stream) {
  return VisitCudaFloat(y->dtype, [&](auto out) {
    using Out = decltype(out);
    return VisitSameOrFloat(out, y->dtype, x->dtype, [&](auto in) {
      return LaunchElementwise<Out, decltype(in), NoInput>(SiluFunction<Out>{}, *y, *x, nullptr,
                                                           static_cast<cudaStream_t>(stream));
    });
  });
}

}  // namespace fuseblock
