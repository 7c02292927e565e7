// The checks of the fused addition and RMSNorm and the order in which its implementations are
// tried.
#include "kernels/add_rms_norm/add_rms_norm.h"

#include "kernels/add_rms_norm/add_rms_norm_cuda.h"
#include "kernels/base/implementations.h"
#include "kernels/base/rms_norm_check.h"
#include "kernels/base/status.h"

namespace fuseblock {

// Defined in add_rms_norm_ref.cc and add_rms_norm_cpu.cc.
absl::Status AddRmsNormReference(const ExecutionContext& context, const AddRmsNormArgs& args);
absl::Status AddRmsNormHighway(const ExecutionContext& context, const AddRmsNormArgs& args);

namespace {

constexpr char kName[] = "add_rms_norm";

int Launch(FuseblockAddRmsNorm* launch, const AddRmsNormArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.dtype);
  const FuseblockCudaRows r = CudaRows(args.r, args.dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.dtype);
  FuseblockCudaRows residual_out{};
  if (args.residual_out) residual_out = CudaRows(*args.residual_out, args.residual_out_dtype);
  return launch(&x, &r, args.weight, static_cast<int>(args.weight_dtype), args.params.eps,
                args.params.weight_offset, args.params.form == RmsNormForm::kNormalisedFirst,
                args.sum == Rounding::kHf, &y, args.residual_out ? &residual_out : nullptr, stream);
}

constexpr Implementation<AddRmsNormArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(AddRmsNormHighway),
    ReferenceImplementation(AddRmsNormReference),
};

}  // namespace

absl::Span<const Implementation<AddRmsNormArgs>> AddRmsNormImplementations() { return kList; }

absl::StatusOr<AddRmsNormArgs> CheckAddRmsNorm(const ConstTensorView& x, const ConstTensorView& r,
                                               const std::optional<ConstTensorView>& weight,
                                               const RmsNormParams& params, Rounding sum,
                                               const TensorView& y,
                                               const std::optional<TensorView>& residual_out) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat("x", x));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("r", r, x.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("y", y, x.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", x, "r", r));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", x, "y", y));
  AddRmsNormArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(args.x, AsRows("x", x));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.r, AsRows("r", r));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.y, AsRows("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckRmsNormWeight(weight, x.dtype, x.cols(), params));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", y, "x", x));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", y, "r", r));
  if (weight) FUSEBLOCK_RETURN_IF_ERROR(CheckApart("y", y, "weight", *weight));
  args.residual_out_dtype = x.dtype;
  if (residual_out) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("residual_out", *residual_out, x.dtype));
    FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", x, "residual_out", *residual_out));
    FUSEBLOCK_ASSIGN_OR_RETURN(args.residual_out, AsRows("residual_out", *residual_out));
    FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("residual_out", *residual_out, "x", x));
    FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("residual_out", *residual_out, "r", r));
    FUSEBLOCK_RETURN_IF_ERROR(CheckApart("residual_out", *residual_out, "y", y));
    if (weight) {
      FUSEBLOCK_RETURN_IF_ERROR(CheckApart("residual_out", *residual_out, "weight", *weight));
    }
    args.residual_out_dtype = residual_out->dtype;
  }
  args.weight = weight ? weight->data : nullptr;
  args.weight_dtype = weight ? weight->dtype : x.dtype;
  args.dtype = x.dtype;
  args.params = params;
  args.sum = sum;
  return args;
}

absl::Status AddRmsNorm(const ExecutionContext& context, const ConstTensorView& x,
                        const ConstTensorView& r, const std::optional<ConstTensorView>& weight,
                        const RmsNormParams& params, Rounding sum, const TensorView& y,
                        const std::optional<TensorView>& residual_out) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const AddRmsNormArgs args,
                             CheckAddRmsNorm(x, r, weight, params, sum, y, residual_out));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("r", r, context.device));
  if (weight) FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("weight", *weight, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (residual_out) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("residual_out", *residual_out, context.device));
  }
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, AddRmsNormImplementations(), context, args);
}

}  // namespace fuseblock
