// GELU, tanh form: its implementations in the order in which they are tried, the FP64 one by its
// formula.
#include "kernels/gelu_tanh/gelu_tanh.h"

#include "kernels/base/implementations.h"
#include "kernels/base/reference_math.h"

namespace fuseblock {

absl::Status GeluTanhHighway(const ExecutionContext& context,
                             const UnaryArgs& args);  // gelu_tanh_cpu.cc

namespace {

constexpr char kName[] = "gelu_tanh";

constexpr Implementation<UnaryArgs> kList[] = {
    CudaImplementation<kName, LaunchUnary>(),
    HighwayImplementation(GeluTanhHighway),
    ReferenceImplementation(UnaryReference<GeluTanhFp64>),
};

}  // namespace

absl::Span<const Implementation<UnaryArgs>> GeluTanhImplementations() { return kList; }

absl::Status GeluTanh(const ExecutionContext& context, const ConstTensorView& x,
                      const TensorView& y) {
  return RunUnary(kName, kList, context, x, y);
}

}  // namespace fuseblock
