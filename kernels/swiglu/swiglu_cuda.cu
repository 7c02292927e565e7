// The CUDA launcher of swiglu (swiglu.h).
#include "kernels/base/elementwise.cuh"
#include "kernels/base/silu.cuh"
#include "kernels/swiglu/swiglu_cuda.h"

namespace fuseblock {
namespace {

template <typename Out, bool kHfRounding>
struct SwiGluFunction {
  __device__ float operator()(float gate, float up) const {
    if constexpr (kHfRounding) return RoundTo<Out>(SiluEager(gate)) * up;
    return SiluTimesFor<Out>(gate, up);
  }
};

}  // namespace

int LaunchSwiGlu(const FuseblockCudaRows* gate, const FuseblockCudaRows* up, int hf_rounding,
                 const FuseblockCudaRows* y, void* stream) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (gate->dtype != up->dtype) return cudaErrorInvalidValue;
  if (hf_rounding != 0 && gate->dtype != y->dtype) return cudaErrorInvalidValue;
  return VisitCudaFloat(y->dtype, [&](auto out) {
    using Out = decltype(out);
    if (hf_rounding != 0) {
      return LaunchElementwise<Out, Out, Out>(SwiGluFunction<Out, true>{}, *y, *gate, up,
                                              cuda_stream);
    }
    return VisitSameOrFloat(out, y->dtype, gate->dtype, [&](auto in) {
      using In = decltype(in);
      return LaunchElementwise<Out, In, In>(SwiGluFunction<Out, false>{}, *y, *gate, up,
                                            cuda_stream);
    });
  });
}

}  // namespace fuseblock
