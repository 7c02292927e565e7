// GELU, erf form: its implementations in the order in which they are tried, the FP64 one by its
// formula.
#include "kernels/gelu_erf/gelu_erf.h"

#include "kernels/base/implementations.h"
#include "kernels/base/reference_math.h"

namespace fuseblock {

absl::Status GeluErfHighway(const ExecutionContext& context,
                            const UnaryArgs& args);  // gelu_erf_cpu.cc

namespace {

constexpr char kName[] = "gelu_erf";

constexpr Implementation<UnaryArgs> kList[] = {
    CudaImplementation<kName, LaunchUnary>(),
    HighwayImplementation(GeluErfHighway),
    ReferenceImplementation(UnaryReference<GeluErfFp64>),
};

}  // namespace

absl::Span<const Implementation<UnaryArgs>> GeluErfImplementations() { return kList; }

absl::Status GeluErf(const ExecutionContext& context, const ConstTensorView& x,
                     const TensorView& y) {
  return RunUnary(kName, kList, context, x, y);
}

}  // namespace fuseblock
