// The CUDA launcher of silu (silu.h).
#include "kernels/base/silu.cuh"
#include "kernels/base/unary.cuh"

namespace fuseblock {
namespace {

template <typename Out>
struct SiluFunction {
  __device__ float operator()(float x) const { return SiluFor<Out>(x); }
};

}  // namespace

int LaunchSilu(const FuseblockCudaRows* x, const FuseblockCudaRows* y, void* stream) {
  return LaunchUnaryFunction<SiluFunction>(x, y, stream);
}

}  // namespace fuseblock
