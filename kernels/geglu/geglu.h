// y = gelu(gate) * up: the gate of a GeGLU feed-forward.
//
// The form of GELU is asked for by name and never substituted: they differ by up to 4.8e-4.
// gate, up, y: the same shape [.., d], last axis contiguous, leading axes collapsible to rows. Any
// d >= 0. y: FP32, FP16 or BF16; gate and up: both y's dtype or both FP32.
// Rounding kFused: FP32 throughout, one rounding. kHf: gelu(gate) is rounded to y's dtype before
// the product, as transformers' act_fn(gate) * up stores it (needs gate and up in y's dtype, else
// INVALID_ARGUMENT). Either way gelu(gate) is what gelu_erf.h and gelu_tanh.h say: 0 from a gate of
// -15 (kErf) and -11 (kTanh) down, whatever up is. Above, and for an FP32 y, gelu(gate) keeps its
// precision below FP32's smallest normal number until it is multiplied.
// FP16: an overflow gives infinity, as it must; it stays in its row. gelu(-inf) is 0, so that -inf
// beside a finite up gives 0 and beside an infinite one NaN. In place: y may be gate or up when the
// dtypes agree; a partial overlap is an error. Operands stay the caller's and are not kept once the
// kernel has finished. Errors: INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  gate [0, 2], up [3, 2] -> [0, 3.908999472] (kErf), [0, 3.909195388] (kTanh)
// Smallest: shape [1]. Boundary: [0, 7168], OK. Invalid: gate [4, 8] with up [4, 9].
// Source: Shazeer, 2020, https://arxiv.org/abs/2002.05202.
#pragma once

#include "kernels/base/gelu.h"
#include "kernels/base/implementation.h"
#include "kernels/base/rounding.h"

namespace fuseblock {

struct GeGluArgs {
  ConstRows gate, up;
  Rows y;
  DType in_dtype, y_dtype;
  GeluForm form;
  Rounding rounding;
};

absl::Span<const Implementation<GeGluArgs>> GeGluImplementations();

absl::StatusOr<GeGluArgs> CheckGeGlu(const ConstTensorView& gate, const ConstTensorView& up,
                                     GeluForm form, Rounding rounding, const TensorView& y);
absl::Status GeGlu(const ExecutionContext& context, const ConstTensorView& gate,
                   const ConstTensorView& up, GeluForm form, Rounding rounding,
                   const TensorView& y);

}  // namespace fuseblock
