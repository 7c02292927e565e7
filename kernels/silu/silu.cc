// SiLU: its implementations in the order in which they are tried, the FP64 one by its formula.
#include "kernels/silu/silu.h"

#include "kernels/base/implementations.h"
#include "kernels/base/reference_math.h"

namespace fuseblock {

absl::Status SiluHighway(const ExecutionContext& context, const UnaryArgs& args);  // silu_cpu.cc

namespace {

constexpr char kName[] = "silu";

constexpr Implementation<UnaryArgs> kList[] = {
    CudaImplementation<kName, LaunchUnary>(),
    HighwayImplementation(SiluHighway),
    ReferenceImplementation(UnaryReference<SiluFp64>),
};

}  // namespace

absl::Span<const Implementation<UnaryArgs>> SiluImplementations() { return kList; }

absl::Status Silu(const ExecutionContext& context, const ConstTensorView& x, const TensorView& y) {
  return RunUnary(kName, kList, context, x, y);
}

}  // namespace fuseblock
