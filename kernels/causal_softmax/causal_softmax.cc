// The checks of the causal softmax and the order in which its implementations are tried.
#include "kernels/causal_softmax/causal_softmax.h"

#include <cmath>

#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/causal_softmax/causal_softmax_cuda.h"

namespace fuseblock {

// Defined in causal_softmax_ref.cc and causal_softmax_cpu.cc.
absl::Status CausalSoftmaxReference(const ExecutionContext& context, const CausalSoftmaxArgs& args);
absl::Status CausalSoftmaxHighway(const ExecutionContext& context, const CausalSoftmaxArgs& args);

namespace {

constexpr char kName[] = "causal_softmax";

int Launch(FuseblockCausalSoftmax* launch, const CausalSoftmaxArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.x_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&x, args.queries, args.scale, &y, stream);
}

constexpr Implementation<CausalSoftmaxArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(CausalSoftmaxHighway),
    ReferenceImplementation(CausalSoftmaxReference),
};

}  // namespace

absl::Span<const Implementation<CausalSoftmaxArgs>> CausalSoftmaxImplementations() { return kList; }

absl::StatusOr<CausalSoftmaxArgs> CheckCausalSoftmax(const ConstTensorView& x, float scale,
                                                     const TensorView& y) {
  CausalSoftmaxArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(static_cast<UnaryArgs&>(args), CheckUnary(x, y));
  if (x.rank < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("x: expected [.., Q, KV], rank >= 2, got ", Describe(x)));
  }
  if (!(scale > 0 && scale <= 0x1p126f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale: expected a value > 0 and at most 2^126, got ", scale));
  }
  args.queries = x.shape[x.rank - 2];
  args.scale = scale;
  return args;
}

absl::Status CausalSoftmax(const ExecutionContext& context, const ConstTensorView& x, float scale,
                           const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const CausalSoftmaxArgs args, CheckCausalSoftmax(x, scale, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, CausalSoftmaxImplementations(), context, args);
}

}  // namespace fuseblock
