// The checks of a gated product's operands, f(gate) * up, which SwiGLU and GeGLU share.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/rounding.h"
#include "kernels/base/status.h"
#include "kernels/base/tensor_view.h"

namespace fuseblock {

// Args: the kernel's own, with gate, up, y, in_dtype, y_dtype and rounding, which this sets.
template <typename Args>
absl::StatusOr<Args> CheckGate(const ConstTensorView& gate, const ConstTensorView& up,
                               Rounding rounding, const TensorView& y) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat("y", y));
  if (rounding == Rounding::kHf) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDType("gate", gate, y.dtype));
  } else {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("gate", gate, y.dtype));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("up", up, gate.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("gate", gate, "up", up));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("gate", gate, "y", y));
  Args args;
  FUSEBLOCK_ASSIGN_OR_RETURN(args.gate, AsRows("gate", gate));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.up, AsRows("up", up));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.y, AsRows("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", y, "gate", gate));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", y, "up", up));
  args.in_dtype = gate.dtype;
  args.y_dtype = y.dtype;
  args.rounding = rounding;
  return args;
}

}  // namespace fuseblock
