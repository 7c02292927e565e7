// The checks of masked softmax and the order in which its implementations are tried.
#include "kernels/softmax_masked/softmax_masked.h"

#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/softmax_masked/softmax_masked_cuda.h"

namespace fuseblock {

// Defined in softmax_masked_ref.cc and softmax_masked_cpu.cc.
absl::Status SoftmaxMaskedReference(const ExecutionContext& context, const SoftmaxMaskedArgs& args);
absl::Status SoftmaxMaskedHighway(const ExecutionContext& context, const SoftmaxMaskedArgs& args);

namespace {

constexpr char kName[] = "softmax_masked";

int Launch(FuseblockSoftmaxMasked* launch, const SoftmaxMaskedArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.x_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  FuseblockCudaRows mask{};
  if (args.mask) mask = CudaRows(*args.mask, args.mask_dtype);
  return launch(&x, args.mask ? &mask : nullptr, &y, stream);
}

constexpr Implementation<SoftmaxMaskedArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(SoftmaxMaskedHighway),
    ReferenceImplementation(SoftmaxMaskedReference),
};

}  // namespace

absl::Span<const Implementation<SoftmaxMaskedArgs>> SoftmaxMaskedImplementations() { return kList; }

absl::StatusOr<SoftmaxMaskedArgs> CheckSoftmaxMasked(const ConstTensorView& x,
                                                     const std::optional<ConstTensorView>& mask,
                                                     const TensorView& y) {
  SoftmaxMaskedArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(static_cast<UnaryArgs&>(args), CheckUnary(x, y));
  args.mask_dtype = y.dtype;
  if (mask) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("mask", *mask, y.dtype));
    FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", x, "mask", *mask));
    FUSEBLOCK_ASSIGN_OR_RETURN(args.mask, AsRows("mask", *mask));
    FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", y, "mask", *mask));
    args.mask_dtype = mask->dtype;
  }
  return args;
}

absl::Status SoftmaxMasked(const ExecutionContext& context, const ConstTensorView& x,
                           const std::optional<ConstTensorView>& mask, const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const SoftmaxMaskedArgs args, CheckSoftmaxMasked(x, mask, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  if (mask) FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("mask", *mask, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, SoftmaxMaskedImplementations(), context, args);
}

}  // namespace fuseblock
