// The CUDA launcher of add_residual (add_residual.h).
#include "kernels/add_residual/add_residual_cuda.h"
#include "kernels/base/elementwise.cuh"

namespace fuseblock {
namespace {

struct AddFunction {
  __device__ float operator()(float x, float r) const { return x + r; }
};

}  // namespace

int LaunchAddResidual(const FuseblockCudaRows* x, const FuseblockCudaRows* r,
                      const FuseblockCudaRows* z, void* stream) {
  return VisitCudaFloat(z->dtype, [&](auto out) {
    return VisitSameOrFloat(out, z->dtype, x->dtype, [&](auto a) {
      return VisitSameOrFloat(out, z->dtype, r->dtype, [&](auto b) {
        return LaunchElementwise<decltype(out), decltype(a), decltype(b)>(
            AddFunction{}, *z, *x, r, static_cast<cudaStream_t>(stream));
      });
    });
  });
}

}  // namespace fuseblock
