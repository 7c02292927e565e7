// The checks of an RMSNorm's weight and parameters, which the plain and the fused norm share.
#pragma once

#include <cmath>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/rounding.h"
#include "kernels/base/status.h"
#include "kernels/base/tensor_view.h"

namespace fuseblock {

inline absl::Status CheckRmsNormWeight(const std::optional<ConstTensorView>& weight, DType dtype,
                                       int64_t columns, const RmsNormParams& params) {
  if (!(params.eps > 0) || !std::isfinite(params.eps)) {
    return absl::InvalidArgumentError(
        absl::StrCat("eps: expected a finite value > 0, got ", params.eps));
  }
  if (!std::isfinite(params.weight_offset)) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight_offset: expected a finite value, got ", params.weight_offset));
  }
  if (!weight) {
    if (params.weight_offset == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("weight_offset: expected 0 without a weight, got ", params.weight_offset));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("weight", *weight, dtype));
  return CheckVector("weight", *weight, columns);
}

}  // namespace fuseblock
