// The feed-forward networks composed of their products and the function between them, and the
// order in which the implementations are tried.
#include "kernels/feed_forward/feed_forward.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/align.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"
#include "kernels/base/workspace.h"
#include "kernels/feed_forward/feed_forward_ref.h"
#include "kernels/geglu/geglu.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "kernels/linear_bias_gelu/linear_bias_gelu.h"
#include "kernels/swiglu/swiglu.h"

namespace fuseblock {
namespace {

bool IsGated(const FeedForwardWeights& weights) { return EntryOf(weights.form).gated; }

// The tensors that a run keeps in its workspace: gate and up as the products give them, and the
// product of the two, which takes gate's place when it has gate's dtype. Dense forms have the
// product alone.
struct Layout {
  DType inner;  // of gate and up
  size_t gate = 0, up = 0, product = 0;
  size_t bytes = 0;
};

Layout LayoutOf(const FeedForwardWeights& weights, int64_t rows, Rounding rounding) {
  const DType dtype = weights.dtype();
  Layout layout;
  layout.inner = rounding == Rounding::kFused ? DType::kF32 : dtype;
  const auto take = [&](DType of) {
    const size_t begin = layout.bytes;
    layout.bytes +=
        AlignTensor(static_cast<size_t>(rows) * static_cast<size_t>(weights.intermediate()) *
                    static_cast<size_t>(SizeOf(of)));
    return begin;
  };
  if (IsGated(weights)) {
    layout.gate = take(layout.inner);
    layout.up = take(layout.inner);
    layout.product = layout.inner == dtype ? layout.gate : take(dtype);
  } else {
    layout.product = take(dtype);
  }
  return layout;
}

// product = f(gate) * up.
absl::Status Gate(const ExecutionContext& context, FeedForwardForm form, const TensorView& gate,
                  const TensorView& up, Rounding rounding, const TensorView& product) {
  switch (EntryOf(form).activation) {
    case Activation::kSilu:
      return SwiGlu(context, gate, up, rounding, product);
    case Activation::kGeluTanh:
      return GeGlu(context, gate, up, GeluForm::kTanh, rounding, product);
    case Activation::kGeluErf:
      return GeGlu(context, gate, up, GeluForm::kErf, rounding, product);
  }
  return absl::InternalError("an activation that is not listed");
}

// product = gelu(up(x)): kHf stores up(x) in between.
absl::Status Dense(const ExecutionContext& context, const ConstTensorView& x,
                   const FeedForwardWeights& weights, Rounding rounding,
                   const TensorView& product) {
  const bool erf = EntryOf(weights.form).activation == Activation::kGeluErf;
  if (rounding == Rounding::kFused) {
    return LinearBiasGelu(context, x, weights.up, erf ? GeluForm::kErf : GeluForm::kTanh, product);
  }
  FUSEBLOCK_RETURN_IF_ERROR(Linear(context, x, weights.up, product));
  return erf ? GeluErf(context, product, product) : GeluTanh(context, product, product);
}

absl::Status RunComposed(const ExecutionContext& context, const FeedForwardArgs& args) {
  const FeedForwardWeights& weights = *args.weights;
  const int64_t rows = args.x.rows();
  const Layout layout = LayoutOf(weights, rows, args.rounding);
  const auto view = [&](size_t offset, DType dtype) {
    return TensorView(args.workspace.data() + offset, dtype, {rows, weights.intermediate()},
                      context.device);
  };
  absl::StatusOr<ConstRows> x = AsRows("x", args.x);
  absl::StatusOr<Rows> y = AsRows("y", args.y);
  if (!x.ok()) return x.status();
  if (!y.ok()) return y.status();
  ConstTensorView x_rows(x->data, args.x.dtype, {x->rows, x->cols}, context.device);
  x_rows.stride[0] = x->stride;
  TensorView y_rows(y->data, args.y.dtype, {y->rows, y->cols}, context.device);
  y_rows.stride[0] = y->stride;

  const TensorView product = view(layout.product, weights.dtype());
  if (IsGated(weights)) {
    const TensorView gate = view(layout.gate, layout.inner);
    const TensorView up = view(layout.up, layout.inner);
    FUSEBLOCK_RETURN_IF_ERROR(Linear(context, x_rows, weights.gate, gate));
    FUSEBLOCK_RETURN_IF_ERROR(Linear(context, x_rows, weights.up, up));
    FUSEBLOCK_RETURN_IF_ERROR(Gate(context, weights.form, gate, up, args.rounding, product));
  } else {
    FUSEBLOCK_RETURN_IF_ERROR(Dense(context, x_rows, weights, args.rounding, product));
  }
  return Linear(context, product, weights.down, y_rows);
}

// The operands as few_tokens.h takes them.
absl::StatusOr<FewTokensArgs> ForFewTokens(const FeedForwardArgs& args) {
  return AsFewTokensArgs(args.weights->few.get(), args.x, args.y, args.workspace);
}

std::string WhyNotFew(const FeedForwardArgs& args) {
  return WhyNotFewTokens(*args.weights, args.rounding, ForFewTokens(args));
}

absl::Status RunFew(const ExecutionContext& context, const FeedForwardArgs& args) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const FewTokensArgs few, ForFewTokens(args));
  return RunFewTokens(context, few);
}

constexpr Implementation<FeedForwardArgs> kImplementations[] = {
    {"wgmma", DeviceType::kCuda, FewTokensUnavailable, WhyNotFew, RunFew},
    {"composed", DeviceType::kCpu, AlwaysAvailable, TakesAll<FeedForwardArgs>, RunComposed},
    {"composed", DeviceType::kCuda, CudaUnavailable, TakesAll<FeedForwardArgs>, RunComposed},
    {"reference", DeviceType::kCpu, AlwaysAvailable, TakesAll<FeedForwardArgs>,
     FeedForwardReference},
};

absl::Status CheckWeight(const char* name, const LinearWeight& weight, int64_t n, int64_t k,
                         const LinearWeight& like) {
  if (weight.n() == n && weight.k() == k && weight.dtype() == like.dtype() &&
      weight.device() == like.device()) {
    return absl::OkStatus();
  }
  const auto text = [](int64_t rows, int64_t cols, const LinearWeight& of) {
    return absl::StrCat("[", rows, ", ", cols, "] ", std::string(Name(of.dtype())), " on ",
                        DeviceName(of.device()));
  };
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected ", text(n, k, like), ", got ",
                                                 text(weight.n(), weight.k(), weight)));
}

absl::Status Check(const FeedForwardArgs& args) {
  const FeedForwardWeights& weights = *args.weights;
  const LinearWeight& inner = weights.inner();
  FUSEBLOCK_RETURN_IF_ERROR(CheckWeight("up", weights.up, inner.n(), inner.k(), inner));
  FUSEBLOCK_RETURN_IF_ERROR(CheckWeight("down", weights.down, inner.k(), inner.n(), inner));
  // x and y as the operands of the first and of the last product.
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("x", args.x, inner.dtype()));
  if (args.x.rank == 0 || args.x.cols() != inner.k()) {
    return absl::InvalidArgumentError(
        absl::StrCat("x: expected ", inner.k(), " columns, got ", Describe(args.x)));
  }
  if (args.rounding == Rounding::kHf || args.y.dtype != DType::kF32) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDType("y", args.y, inner.dtype()));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", args.x, "y", args.y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckApart("y", args.y, "x", args.x));
  return CheckWorkspace(args.workspace,
                        FeedForwardWorkspaceBytes(weights, args.x.rows(), args.rounding));
}

}  // namespace

absl::Span<const Implementation<FeedForwardArgs>> FeedForwardImplementations() {
  return kImplementations;
}

size_t FeedForwardWorkspaceBytes(const FeedForwardWeights& weights, int64_t rows,
                                 Rounding rounding) {
  const size_t composed = LayoutOf(weights, rows, rounding).bytes;
  if (weights.few == nullptr) return composed;
  return std::max(composed, FewTokensWorkspaceBytes(*weights.few, rows));
}

absl::Status FeedForward(const ExecutionContext& context, const ConstTensorView& x,
                         const FeedForwardWeights& weights, Rounding rounding, const TensorView& y,
                         absl::Span<std::byte> workspace) {
  const FeedForwardArgs args{x, &weights, rounding, y, workspace};
  FUSEBLOCK_RETURN_IF_ERROR(Check(args));
  if (x.elements() == 0) return absl::OkStatus();
  return RunFirst(EntryOf(weights.form).kernel, FeedForwardImplementations(), context, args);
}

absl::Status FeedForwardOf(std::initializer_list<FeedForwardForm> forms,
                           const ExecutionContext& context, const ConstTensorView& x,
                           const FeedForwardWeights& weights, Rounding rounding,
                           const TensorView& y, absl::Span<std::byte> workspace) {
  if (std::find(forms.begin(), forms.end(), weights.form) == forms.end()) {
    const auto name = [](std::string* out, FeedForwardForm form) {
      absl::StrAppend(out, EntryOf(form).name);
    };
    return absl::InvalidArgumentError(absl::StrCat("weights.form: expected ",
                                                   absl::StrJoin(forms, " or ", name), ", got ",
                                                   EntryOf(weights.form).name));
  }
  return FeedForward(context, x, weights, rounding, y, workspace);
}

}  // namespace fuseblock
