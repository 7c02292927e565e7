// The CUDA launcher of geglu (geglu.h).
#include "kernels/base/elementwise.cuh"
#include "kernels/base/gelu.cuh"
#include "kernels/geglu/geglu_cuda.h"

namespace fuseblock {
namespace {

template <typename Out, GeluForm kForm, bool kHfRounding>
struct GeGluFunction {
  __device__ float operator()(float gate, float up) const {
    if constexpr (kHfRounding) return RoundTo<Out>(GeluFor<Out, kForm>(gate)) * up;
    return GeluTimesFor<Out, kForm>(gate, up);
  }
};

template <GeluForm kForm>
cudaError_t LaunchForm(const FuseblockCudaRows& gate, const FuseblockCudaRows& up, int hf_rounding,
                       const FuseblockCudaRows& y, cudaStream_t stream) {
  return VisitCudaFloat(y.dtype, [&](auto out) {
    using Out = decltype(out);
    if (hf_rounding != 0) {
      return LaunchElementwise<Out, Out, Out>(GeGluFunction<Out, kForm, true>{}, y, gate, &up,
                                              stream);
    }
    return VisitSameOrFloat(out, y.dtype, gate.dtype, [&](auto in) {
      using In = decltype(in);
      return LaunchElementwise<Out, In, In>(GeGluFunction<Out, kForm, false>{}, y, gate, &up,
                                            stream);
    });
  });
}

}  // namespace

int LaunchGeGlu(const FuseblockCudaRows* gate, const FuseblockCudaRows* up, int erf,
                int hf_rounding, const FuseblockCudaRows* y, void* stream) {
  if (gate->dtype != up->dtype) return cudaErrorInvalidValue;
  if (hf_rounding != 0 && gate->dtype != y->dtype) return cudaErrorInvalidValue;
  const auto launch = erf != 0 ? LaunchForm<GeluForm::kErf> : LaunchForm<GeluForm::kTanh>;
  return launch(*gate, *up, hf_rounding, *y, static_cast<cudaStream_t>(stream));
}

}  // namespace fuseblock
