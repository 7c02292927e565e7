#include "kernels/linear_bias_gelu/linear_bias_gelu.h"

#include "kernels/base/status.h"

namespace fuseblock {

absl::StatusOr<LinearArgs> CheckLinearBiasGelu(const ConstTensorView& x, const LinearWeight& weight,
                                               GeluForm form, const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(LinearArgs args, CheckLinear(x, weight, y));
  args.epilogue = form == GeluForm::kErf ? LinearEpilogue::kGeluErf : LinearEpilogue::kGeluTanh;
  return args;
}

absl::Status LinearBiasGelu(const ExecutionContext& context, const ConstTensorView& x,
                            const LinearWeight& weight, GeluForm form, const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const LinearArgs args, CheckLinearBiasGelu(x, weight, form, y));
  if (args.y.rows == 0 || args.y.cols == 0) return absl::OkStatus();
  return RunFirst("linear_bias_gelu", LinearImplementations(), context, args);
}

}  // namespace fuseblock
