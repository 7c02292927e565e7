// The SwiGLU feed-forward composed of three products and the gate between them.
#include "kernels/mlp_swiglu/mlp_swiglu.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"
#include "kernels/mlp_swiglu/mlp_swiglu_ref.h"
#include "kernels/swiglu/swiglu.h"

namespace fuseblock {
namespace {

constexpr size_t kAlignment = 256;

// The tensors that a run keeps in its workspace: gate and up as the products give them, and the
// gated product, which takes gate's place when it has gate's dtype.
struct Layout {
  DType inner;  // of gate and up
  size_t gate = 0, up = 0, product = 0;
  size_t bytes = 0;
};

Layout LayoutOf(const MlpSwiGluWeights& weights, int64_t rows, Rounding rounding) {
  const DType dtype = weights.gate.dtype();
  Layout layout;
  layout.inner = rounding == Rounding::kFused ? DType::kF32 : dtype;
  const auto take = [&](DType of) {
    const size_t begin = layout.bytes;
    const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(weights.gate.n()) *
                         static_cast<size_t>(SizeOf(of));
    layout.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  layout.gate = take(layout.inner);
  layout.up = take(layout.inner);
  layout.product = layout.inner == dtype ? layout.gate : take(dtype);
  return layout;
}

absl::Status RunComposed(const ExecutionContext& context, const MlpSwiGluArgs& args) {
  const MlpSwiGluWeights& weights = *args.weights;
  const int64_t rows = args.x.rows();
  const int64_t inner = weights.gate.n();
  const Layout layout = LayoutOf(weights, rows, args.rounding);
  std::byte* base = args.workspace.data();
  const auto view = [&](size_t offset, DType dtype) {
    return TensorView(base + offset, dtype, {rows, inner}, context.device);
  };
  absl::StatusOr<ConstRows> x = AsRows("x", args.x);
  absl::StatusOr<Rows> y = AsRows("y", args.y);
  if (!x.ok()) return x.status();
  if (!y.ok()) return y.status();
  ConstTensorView x_rows(x->data, args.x.dtype, {x->rows, x->cols}, context.device);
  x_rows.stride[0] = x->stride;
  TensorView y_rows(y->data, args.y.dtype, {y->rows, y->cols}, context.device);
  y_rows.stride[0] = y->stride;

  const TensorView gate = view(layout.gate, layout.inner);
  const TensorView up = view(layout.up, layout.inner);
  const TensorView product = view(layout.product, weights.gate.dtype());
  FUSEBLOCK_RETURN_IF_ERROR(Linear(context, x_rows, weights.gate, gate));
  FUSEBLOCK_RETURN_IF_ERROR(Linear(context, x_rows, weights.up, up));
  FUSEBLOCK_RETURN_IF_ERROR(SwiGlu(context, gate, up, args.rounding, product));
  return Linear(context, product, weights.down, y_rows);
}

// The operands as few_tokens.h takes them.
absl::StatusOr<FewTokensArgs> ForFewTokens(const MlpSwiGluArgs& args) {
  return AsFewTokensArgs(args.weights->few.get(), args.x, args.y, args.workspace);
}

std::string WhyNotFew(const MlpSwiGluArgs& args) {
  if (args.weights->few == nullptr) return args.weights->no_few;
  if (args.rounding != Rounding::kFused) return "rounds as fused, not as hf";
  const absl::StatusOr<FewTokensArgs> few = ForFewTokens(args);
  return few.ok() ? WhyNotFewTokens(*few) : std::string(few.status().message());
}

absl::Status RunFew(const ExecutionContext& context, const MlpSwiGluArgs& args) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const FewTokensArgs few, ForFewTokens(args));
  return RunFewTokens(context, few);
}

constexpr Implementation<MlpSwiGluArgs> kImplementations[] = {
    {"wgmma", DeviceType::kCuda, FewTokensUnavailable, WhyNotFew, RunFew},
    {"composed", DeviceType::kCpu, AlwaysAvailable, TakesAll<MlpSwiGluArgs>, RunComposed},
    {"composed", DeviceType::kCuda, CudaUnavailable, TakesAll<MlpSwiGluArgs>, RunComposed},
    {"reference", DeviceType::kCpu, AlwaysAvailable, TakesAll<MlpSwiGluArgs>, MlpSwiGluReference},
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

absl::Status Check(const MlpSwiGluArgs& args) {
  const LinearWeight& gate = args.weights->gate;
  FUSEBLOCK_RETURN_IF_ERROR(CheckWeight("up", args.weights->up, gate.n(), gate.k(), gate));
  FUSEBLOCK_RETURN_IF_ERROR(CheckWeight("down", args.weights->down, gate.k(), gate.n(), gate));
  // x and y as the operands of the first and of the last product.
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("x", args.x, gate.dtype()));
  if (args.x.rank == 0 || args.x.cols() != gate.k()) {
    return absl::InvalidArgumentError(
        absl::StrCat("x: expected ", gate.k(), " columns, got ", Describe(args.x)));
  }
  if (args.rounding == Rounding::kHf || args.y.dtype != DType::kF32) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDType("y", args.y, gate.dtype()));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", args.x, "y", args.y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", args.y, "x", args.x));
  if (args.x.data == args.y.data && args.x.elements() > 0) {
    return absl::InvalidArgumentError("y: must not be x itself: the feed-forward is not in place");
  }
  const size_t needed = MlpSwiGluWorkspaceBytes(*args.weights, args.x.rows(), args.rounding);
  if (args.workspace.size() < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("workspace: expected ", needed, " bytes, got ", args.workspace.size()));
  }
  if (needed > 0 && reinterpret_cast<uintptr_t>(args.workspace.data()) % kAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("workspace: expected ", kAlignment, "-byte alignment"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const Implementation<MlpSwiGluArgs>> MlpSwiGluImplementations() {
  return kImplementations;
}

size_t MlpSwiGluWorkspaceBytes(const MlpSwiGluWeights& weights, int64_t rows, Rounding rounding) {
  const size_t composed = LayoutOf(weights, rows, rounding).bytes;
  if (weights.few == nullptr) return composed;
  return std::max(composed, FewTokensWorkspaceBytes(*weights.few, rows));
}

absl::Status MlpSwiGlu(const ExecutionContext& context, const ConstTensorView& x,
                       const MlpSwiGluWeights& weights, Rounding rounding, const TensorView& y,
                       absl::Span<std::byte> workspace) {
  const MlpSwiGluArgs args{x, &weights, rounding, y, workspace};
  FUSEBLOCK_RETURN_IF_ERROR(Check(args));
  if (x.elements() == 0) return absl::OkStatus();
  return RunFirst("mlp_swiglu", MlpSwiGluImplementations(), context, args);
}

}  // namespace fuseblock
