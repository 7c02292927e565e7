// The launch of y = f(x) (unary.h).
#pragma once

#include "kernels/base/elementwise.cuh"
#include "kernels/base/unary_cuda.h"

namespace fuseblock {

// Function<Out>()(float) is f, as accurate as an output of Out deserves.
template <template <typename> class Function>
int LaunchUnaryFunction(const FuseblockCudaRows* x, const FuseblockCudaRows* y, void* stream) {
  return VisitCudaFloat(y->dtype, [&](auto out) {
    using Out = decltype(out);
    return VisitSameOrFloat(out, y->dtype, x->dtype, [&](auto in) {
      return LaunchElementwise<Out, decltype(in), NoInput>(Function<Out>{}, *y, *x, nullptr,
                                                           static_cast<cudaStream_t>(stream));
    });
  });
}

}  // namespace fuseblock
