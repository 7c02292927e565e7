// Softmax: its implementations in the order in which they are tried.
#include "kernels/softmax/softmax.h"

#include "kernels/base/implementations.h"

namespace fuseblock {

// Defined in softmax_ref.cc and softmax_cpu.cc.
absl::Status SoftmaxReference(const ExecutionContext& context, const UnaryArgs& args);
absl::Status SoftmaxHighway(const ExecutionContext& context, const UnaryArgs& args);

namespace {

constexpr char kName[] = "softmax";

constexpr Implementation<UnaryArgs> kList[] = {
    CudaImplementation<kName, LaunchUnary>(),
    HighwayImplementation(SoftmaxHighway),
    ReferenceImplementation(SoftmaxReference),
};

}  // namespace

absl::Span<const Implementation<UnaryArgs>> SoftmaxImplementations() { return kList; }

absl::Status Softmax(const ExecutionContext& context, const ConstTensorView& x,
                     const TensorView& y) {
  return RunUnary(kName, kList, context, x, y);
}

}  // namespace fuseblock
