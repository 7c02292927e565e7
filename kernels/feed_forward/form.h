// The forms of a feed-forward network that the library has, as a table:
//   gated: y = down(f(gate(x)) * up(x))
//   dense: y = down(f(up(x)))
// A form is data of the weights: it decides how they are packed, which kernels read them, and what
// their proof proves.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/base/activation.h"

namespace fuseblock {

enum class FeedForwardForm : int {  // the CUDA launchers' int, too
  kSwiGlu,
  kGeGluTanh,
  kGeGluErf,
  kGeluTanh,
  kGeluErf,
};

struct FeedForwardFormEntry {
  FeedForwardForm form;
  const char* kernel;  // the folder under kernels/
  const char* name;    // for people
  Activation activation;
  bool gated;
};

inline constexpr FeedForwardFormEntry kFeedForwardForms[] = {
    {FeedForwardForm::kSwiGlu, "mlp_swiglu", "SwiGLU", Activation::kSilu, true},
    {FeedForwardForm::kGeGluTanh, "mlp_geglu", "GeGLU (tanh)", Activation::kGeluTanh, true},
    {FeedForwardForm::kGeGluErf, "mlp_geglu", "GeGLU (erf)", Activation::kGeluErf, true},
    {FeedForwardForm::kGeluTanh, "mlp_gelu", "GELU (tanh)", Activation::kGeluTanh, false},
    {FeedForwardForm::kGeluErf, "mlp_gelu", "GELU (erf)", Activation::kGeluErf, false},
};

constexpr const FeedForwardFormEntry& EntryOf(FeedForwardForm form) {
  return kFeedForwardForms[static_cast<size_t>(form)];
}

// The form of that activation, with or without a gate; none of SiLU without.
constexpr std::optional<FeedForwardForm> FormOf(Activation activation, bool gated) {
  for (const FeedForwardFormEntry& entry : kFeedForwardForms) {
    if (entry.activation == activation && entry.gated == gated) return entry.form;
  }
  return std::nullopt;
}

}  // namespace fuseblock
