// The checks of softmax and the order in which its implementations are tried.
#include "kernels/softmax/softmax.h"

#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/softmax/softmax_cuda.h"

namespace fuseblock {

// Defined in softmax_ref.cc and softmax_cpu.cc.
absl::Status SoftmaxReference(const ExecutionContext& context, const SoftmaxArgs& args);
absl::Status SoftmaxHighway(const ExecutionContext& context, const SoftmaxArgs& args);

namespace {

constexpr char kName[] = "softmax";

int Launch(FuseblockSoftmax* launch, const SoftmaxArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.x_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&x, &y, stream);
}

constexpr Implementation<SoftmaxArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(SoftmaxHighway),
    ReferenceImplementation(SoftmaxReference),
};

}  // namespace

absl::Span<const Implementation<SoftmaxArgs>> SoftmaxImplementations() { return kList; }

absl::StatusOr<SoftmaxArgs> CheckSoftmax(const ConstTensorView& x, const TensorView& y) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("x", x, y.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", x, "y", y));
  SoftmaxArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(args.x, AsRows("x", x));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.y, AsRows("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", y, "x", x));
  args.x_dtype = x.dtype;
  args.y_dtype = y.dtype;
  return args;
}

absl::Status Softmax(const ExecutionContext& context, const ConstTensorView& x,
                     const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const SoftmaxArgs args, CheckSoftmax(x, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, SoftmaxImplementations(), context, args);
}

}  // namespace fuseblock
