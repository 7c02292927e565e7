// The CUDA launcher of gelu_erf (gelu_erf.h).
#include "kernels/base/gelu.cuh"
#include "kernels/base/unary.cuh"

namespace fuseblock {
namespace {

template <typename Out>
struct GeluErfFunction {
  __device__ float operator()(float x) const { return GeluFor<Out, GeluForm::kErf>(x); }
};

}  // namespace

int LaunchGeluErf(const FuseblockCudaRows* x, const FuseblockCudaRows* y, void* stream) {
  return LaunchUnaryFunction<GeluErfFunction>(x, y, stream);
}

}  // namespace fuseblock
