// The checks of RMSNorm and the order in which its implementations are tried.
#include "kernels/rms_norm/rms_norm.h"

#include "kernels/base/implementations.h"
#include "kernels/base/rms_norm_check.h"
#include "kernels/base/status.h"
#include "kernels/rms_norm/rms_norm_cuda.h"

namespace fuseblock {

// Defined in rms_norm_ref.cc and rms_norm_cpu.cc.
absl::Status RmsNormReference(const ExecutionContext& context, const RmsNormArgs& args);
absl::Status RmsNormHighway(const ExecutionContext& context, const RmsNormArgs& args);

namespace {

constexpr char kName[] = "rms_norm";

int Launch(FuseblockRmsNorm* launch, const RmsNormArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.x_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&x, args.weight, static_cast<int>(args.weight_dtype), args.params.eps,
                args.params.weight_offset, args.params.form == RmsNormForm::kNormalisedFirst, &y,
                stream);
}

constexpr Implementation<RmsNormArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(RmsNormHighway),
    ReferenceImplementation(RmsNormReference),
};

}  // namespace

absl::Span<const Implementation<RmsNormArgs>> RmsNormImplementations() { return kList; }

absl::StatusOr<RmsNormArgs> CheckRmsNorm(const ConstTensorView& x,
                                         const std::optional<ConstTensorView>& weight,
                                         const RmsNormParams& params, const TensorView& y) {
  RmsNormArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(static_cast<UnaryArgs&>(args), CheckUnary(x, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckRmsNormWeight(weight, y.dtype, x.cols(), params));
  if (weight) FUSEBLOCK_RETURN_IF_ERROR(CheckApart("y", y, "weight", *weight));
  args.weight = weight ? weight->data : nullptr;
  args.weight_dtype = weight ? weight->dtype : y.dtype;
  args.params = params;
  return args;
}

absl::Status RmsNorm(const ExecutionContext& context, const ConstTensorView& x,
                     const std::optional<ConstTensorView>& weight, const RmsNormParams& params,
                     const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const RmsNormArgs args, CheckRmsNorm(x, weight, params, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  if (weight) FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("weight", *weight, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, RmsNormImplementations(), context, args);
}

}  // namespace fuseblock
