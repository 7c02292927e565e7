// y = down(silu(gate(x)) * up(x)): the SwiGLU feed-forward, composed of linear and swiglu.
//
// x: [.., H] of the weights' dtype. y: [.., H], that dtype or FP32; must not overlap x. Of both the
// last axis is contiguous and the leading axes are collapsible to rows.
// gate, up: prepared weights [I, H]; down: [H, I]; all of one dtype and device.
// Rounding kFused: gate and up stay FP32, silu(gate) * up is rounded once to the dtype, down's sum
// is FP32, rounded once to y's dtype. kHf: gate, up, silu(gate), the product and down are each
// rounded to the dtype (y FP32 is then INVALID_ARGUMENT unless the dtype is FP32).
// workspace: MlpSwiGluWorkspaceBytes(rows, ..) bytes on the device, 256-byte aligned, not shared
// with a call that is running.
// A row's bits do not depend on the other rows. Zero rows: OK.
// FP16 overflow of silu(gate) * up gives infinity, as it must.
// Operands stay the caller's and are not kept once the kernel has finished. Errors:
// INVALID_ARGUMENT naming the operand, expected and given.
//
// Example:  H = I = 1, gate = up = down = [[1]], x = [[1]] -> [[0.731058578...]]
// Smallest: H = I = 1. Boundary: 0 rows. Invalid: down [H, I + 1].
// Source: Shazeer, 2020, https://arxiv.org/abs/2002.05202; transformers' LlamaMLP.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/base/context.h"
#include "kernels/base/implementation.h"
#include "kernels/base/rounding.h"
#include "kernels/linear/linear.h"
#include "kernels/mlp_swiglu/few_tokens.h"

namespace fuseblock {

struct MlpSwiGluWeights {
  LinearWeight gate, up, down;
  // On Hopper also packed for kernels of its own, by PrepareFewTokens; where it is null, why.
  std::unique_ptr<FewTokens> few = nullptr;
  std::string no_few = "not packed for it";
};

// Packs the weights for Hopper and proves on them that a row has the same bits in every batch.
// Precondition: FewTokens::WhyNot is empty, and down was prepared with FewTokens::PlanFor's
// segments. A proof that fails, or a device without room, is not an error: `few` stays null and
// `no_few` says why.
absl::Status PrepareFewTokens(MlpSwiGluWeights& weights);

struct MlpSwiGluArgs {
  ConstTensorView x;
  const MlpSwiGluWeights* weights;
  Rounding rounding;
  TensorView y;
  absl::Span<std::byte> workspace;
};

absl::Span<const Implementation<MlpSwiGluArgs>> MlpSwiGluImplementations();

size_t MlpSwiGluWorkspaceBytes(const MlpSwiGluWeights& weights, int64_t rows, Rounding rounding);

absl::Status MlpSwiGlu(const ExecutionContext& context, const ConstTensorView& x,
                       const MlpSwiGluWeights& weights, Rounding rounding, const TensorView& y,
                       absl::Span<std::byte> workspace);

}  // namespace fuseblock
