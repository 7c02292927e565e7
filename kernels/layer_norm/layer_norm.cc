// The checks of LayerNorm and the order in which its implementations are tried.
#include "kernels/layer_norm/layer_norm.h"

#include <cmath>

#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/layer_norm/layer_norm_cuda.h"

namespace fuseblock {

// Defined in layer_norm_ref.cc and layer_norm_cpu.cc.
absl::Status LayerNormReference(const ExecutionContext& context, const LayerNormArgs& args);
absl::Status LayerNormHighway(const ExecutionContext& context, const LayerNormArgs& args);

namespace {

constexpr char kName[] = "layer_norm";

int Launch(FuseblockLayerNorm* launch, const LayerNormArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.x_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&x, args.weight, args.bias, static_cast<int>(args.weight_dtype), args.eps, &y,
                stream);
}

constexpr Implementation<LayerNormArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(LayerNormHighway),
    ReferenceImplementation(LayerNormReference),
};

absl::Status CheckColumns(const char* name, const std::optional<ConstTensorView>& operand,
                          const TensorView& y) {
  if (!operand) return absl::OkStatus();
  FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32(name, *operand, y.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckVector(name, *operand, y.cols()));
  return CheckApart("y", y, name, *operand);
}

}  // namespace

absl::Span<const Implementation<LayerNormArgs>> LayerNormImplementations() { return kList; }

absl::StatusOr<LayerNormArgs> CheckLayerNorm(const ConstTensorView& x,
                                             const std::optional<ConstTensorView>& weight,
                                             const std::optional<ConstTensorView>& bias, float eps,
                                             const TensorView& y) {
  LayerNormArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(static_cast<UnaryArgs&>(args), CheckUnary(x, y));
  if (!(eps > 0) || !std::isfinite(eps)) {
    return absl::InvalidArgumentError(absl::StrCat("eps: expected a finite value > 0, got ", eps));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckColumns("weight", weight, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckColumns("bias", bias, y));
  if (weight && bias) FUSEBLOCK_RETURN_IF_ERROR(CheckDType("bias", *bias, weight->dtype));
  args.weight = weight ? weight->data : nullptr;
  args.bias = bias ? bias->data : nullptr;
  args.weight_dtype = weight ? weight->dtype : bias ? bias->dtype : y.dtype;
  args.eps = eps;
  return args;
}

absl::Status LayerNorm(const ExecutionContext& context, const ConstTensorView& x,
                       const std::optional<ConstTensorView>& weight,
                       const std::optional<ConstTensorView>& bias, float eps, const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const LayerNormArgs args, CheckLayerNorm(x, weight, bias, eps, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  if (weight) FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("weight", *weight, context.device));
  if (bias) FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("bias", *bias, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, LayerNormImplementations(), context, args);
}

}  // namespace fuseblock
