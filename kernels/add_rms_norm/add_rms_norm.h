// h = x + r; y = RmsNorm(h); residual_out = h: the residual addition fused with the norm after it.
//
// x, r, y: the same shape [.., H], of one dtype (FP32, FP16 or BF16). residual_out: the same shape,
// of that dtype or FP32, or absent. weight and params: as for RmsNorm (rms_norm.h). sum: which h is
// normalised. kFused: the FP32 sum, not rounded (more exact; the default). kHf: the sum rounded to
// the dtype, as transformers stores it. residual_out is h rounded to its own dtype: exact in FP32
// with kFused, the rounded sum with kHf. In place: y and residual_out may each be x or r, but not
// both the same; a partial overlap is an error. The order of summation depends on H alone. Zero
// rows: OK. Operands stay the caller's and are not kept once the kernel has finished. Errors:
// INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  x [1, 2], r [2, 2], no weight -> h [3, 4], y [0.848528, 1.131371]
// Smallest: [1, 1]. Boundary: FP16 x = 2048, r = 1: h is 2049 (kFused) or 2048 (kHf) for the norm.
// Invalid: r of another dtype than x.
// Source: as add_residual.h and rms_norm.h.
#pragma once

#include <optional>

#include "kernels/base/implementation.h"
#include "kernels/base/rounding.h"

namespace fuseblock {

struct AddRmsNormArgs {
  ConstRows x, r;
  const void* weight;  // null: all ones
  Rows y;
  std::optional<Rows> residual_out;
  DType dtype, weight_dtype, residual_out_dtype;
  RmsNormParams params;
  Rounding sum;
};

absl::Span<const Implementation<AddRmsNormArgs>> AddRmsNormImplementations();

absl::StatusOr<AddRmsNormArgs> CheckAddRmsNorm(const ConstTensorView& x, const ConstTensorView& r,
                                               const std::optional<ConstTensorView>& weight,
                                               const RmsNormParams& params, Rounding sum,
                                               const TensorView& y,
                                               const std::optional<TensorView>& residual_out);
absl::Status AddRmsNorm(const ExecutionContext& context, const ConstTensorView& x,
                        const ConstTensorView& r, const std::optional<ConstTensorView>& weight,
                        const RmsNormParams& params, Rounding sum, const TensorView& y,
                        const std::optional<TensorView>& residual_out);

}  // namespace fuseblock
