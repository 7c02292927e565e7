// What the feed-forward networks have in common, whatever their form: weights, composition of the
// products and the function between them, kernels of their own on Hopper. mlp_swiglu.h, mlp_geglu.h
// and mlp_gelu.h are the kernels with their contracts; ffn_path and blocks take weights of any
// form.
//
// x: [.., H] of the weights' dtype. y: [.., H], that dtype or FP32; must not overlap x. Of both the
// last axis is contiguous and the leading axes are collapsible to rows.
// gate (of gated forms; else it stays empty) and up: prepared weights [I, H]; down: [H, I]; all of
// one dtype and device, each with or without a bias.
// workspace: FeedForwardWorkspaceBytes(rows, ..) bytes on the device, 256-byte aligned, not shared
// with a call that is running.
// A row's bits do not depend on the other rows. Zero rows: OK.
// Operands stay the caller's and are not kept once the kernel has finished. Errors:
// INVALID_ARGUMENT naming the operand, expected and given.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/base/context.h"
#include "kernels/base/implementation.h"
#include "kernels/base/rounding.h"
#include "kernels/feed_forward/few_tokens.h"
#include "kernels/feed_forward/form.h"
#include "kernels/linear/linear.h"

namespace fuseblock {

struct FeedForwardWeights {
  LinearWeight gate, up, down;
  FeedForwardForm form = FeedForwardForm::kSwiGlu;
  // On Hopper also packed for kernels of its own, by PrepareFewTokens; where it is null, why.
  std::unique_ptr<FewTokens> few = nullptr;
  std::string no_few = "not packed for it";

  // The first that x is multiplied with: others are held to its sizes, dtype and device.
  const LinearWeight& inner() const { return EntryOf(form).gated ? gate : up; }
  int64_t hidden() const { return inner().k(); }
  int64_t intermediate() const { return inner().n(); }
  DType dtype() const { return inner().dtype(); }
  Device device() const { return inner().device(); }
};

// Packs the weights for Hopper and proves on them that a row has the same bits in every batch.
// Precondition: FewTokens::WhyNot is empty, and down was prepared with FewTokens::PlanFor's
// segments. A proof that fails, or a device without room, is not an error: `few` stays null and
// `no_few` says why.
absl::Status PrepareFewTokens(FeedForwardWeights& weights);

struct FeedForwardArgs {
  ConstTensorView x;
  const FeedForwardWeights* weights;
  Rounding rounding;
  TensorView y;
  absl::Span<std::byte> workspace;
};

absl::Span<const Implementation<FeedForwardArgs>> FeedForwardImplementations();

size_t FeedForwardWorkspaceBytes(const FeedForwardWeights& weights, int64_t rows,
                                 Rounding rounding);

// y by the weights' own form.
absl::Status FeedForward(const ExecutionContext& context, const ConstTensorView& x,
                         const FeedForwardWeights& weights, Rounding rounding, const TensorView& y,
                         absl::Span<std::byte> workspace);

// The same for a kernel that has these forms; INVALID_ARGUMENT for weights of another.
absl::Status FeedForwardOf(std::initializer_list<FeedForwardForm> forms,
                           const ExecutionContext& context, const ConstTensorView& x,
                           const FeedForwardWeights& weights, Rounding rounding,
                           const TensorView& y, absl::Span<std::byte> workspace);

}  // namespace fuseblock
