// The CUDA launcher of gelu_tanh (gelu_tanh.h).
#include "kernels/base/gelu.cuh"
#include "kernels/base/unary.cuh"

namespace fuseblock {
namespace {

template <typename Out>
struct GeluTanhFunction {
  __device__ float operator()(float x) const { return GeluFor<Out, GeluForm::kTanh>(x); }
};

}  // namespace

int LaunchGeluTanh(const FuseblockCudaRows* x, const FuseblockCudaRows* y, void* stream) {
  return LaunchUnaryFunction<GeluTanhFunction>(x, y, stream);
}

}  // namespace fuseblock
