// The feed-forward path: composed of norm, feed-forward and addition, or, for few tokens on Hopper,
// by kernels of its own.
#include "kernels/ffn_path/ffn_path.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/base/align.h"
#include "kernels/base/status.h"
#include "kernels/base/workspace.h"
#include "kernels/rms_norm/rms_norm.h"

namespace fuseblock {

// Defined in ffn_path_ref.cc.
absl::Status FfnPathReference(const ExecutionContext& context, const FfnPathArgs& args);

namespace {

bool IsAbsent(const ConstTensorView& view) { return view.rank == 0 && view.data == nullptr; }

std::optional<ConstTensorView> IfThere(const ConstTensorView& view) {
  if (IsAbsent(view)) return std::nullopt;
  return view;
}

// Where the composed path keeps its tensors: the residual stream, the norm's result, the
// feed-forward's, the feed-forward's own.
struct Layout {
  DType stream;  // of h and of the feed-forward's output
  size_t h = 0, n = 0, down = 0, mlp = 0;
};

Layout LayoutOf(const FeedForwardWeights& weights, int64_t rows, Rounding rounding) {
  const DType dtype = weights.dtype();
  Layout layout;
  layout.stream = rounding == Rounding::kFused ? DType::kF32 : dtype;
  size_t end = 0;
  const auto take = [&](DType of) {
    const size_t begin = end;
    end += AlignTensor(static_cast<size_t>(rows) * static_cast<size_t>(weights.hidden()) *
                       static_cast<size_t>(SizeOf(of)));
    return begin;
  };
  layout.h = take(layout.stream);
  layout.n = take(dtype);
  layout.down = take(layout.stream);
  layout.mlp = end;
  return layout;
}

absl::Status RunComposed(const ExecutionContext& context, const FfnPathArgs& args) {
  const int64_t rows = args.x.rows();
  const Layout layout = LayoutOf(*args.weights, rows, args.rounding);
  const auto view = [&](size_t offset, DType dtype) {
    return TensorView(args.workspace.data() + offset, dtype, args.x.dims(), context.device);
  };
  const TensorView n = view(layout.n, args.x.dtype);
  const TensorView down = view(layout.down, layout.stream);
  ConstTensorView h = args.x;
  if (IsAbsent(args.residual)) {
    FUSEBLOCK_RETURN_IF_ERROR(RmsNorm(context, args.x, IfThere(args.norm), args.params, n));
  } else {
    const TensorView sum = view(layout.h, layout.stream);
    FUSEBLOCK_RETURN_IF_ERROR(AddRmsNorm(context, args.x, args.residual, IfThere(args.norm),
                                         args.params, args.rounding, n, sum));
    h = sum;
  }
  FUSEBLOCK_RETURN_IF_ERROR(FeedForward(context, n, *args.weights, args.rounding, down,
                                        args.workspace.subspan(layout.mlp)));
  return AddResidual(context, h, down, args.y);
}

// The operands as few_tokens.h takes them.
absl::StatusOr<FewTokensArgs> ForFewTokens(const FfnPathArgs& args) {
  FUSEBLOCK_ASSIGN_OR_RETURN(
      FewTokensArgs few, AsFewTokensArgs(args.weights->few.get(), args.x, args.y, args.workspace));
  few.path = {args.residual, args.norm, args.params.eps, args.params.weight_offset};
  return few;
}

std::string WhyNotFew(const FfnPathArgs& args) {
  return WhyNotFewTokens(*args.weights, args.rounding, ForFewTokens(args));
}

absl::Status RunFew(const ExecutionContext& context, const FfnPathArgs& args) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const FewTokensArgs few, ForFewTokens(args));
  return RunFewTokens(context, few);
}

constexpr Implementation<FfnPathArgs> kImplementations[] = {
    {"wgmma", DeviceType::kCuda, FewTokensUnavailable, WhyNotFew, RunFew},
    {"composed", DeviceType::kCpu, AlwaysAvailable, TakesAll<FfnPathArgs>, RunComposed},
    {"composed", DeviceType::kCuda, CudaUnavailable, TakesAll<FfnPathArgs>, RunComposed},
    {"reference", DeviceType::kCpu, AlwaysAvailable, TakesAll<FfnPathArgs>, FfnPathReference},
};

absl::Status Check(const FfnPathArgs& args) {
  const LinearWeight& inner = args.weights->inner();
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("x", args.x, inner.dtype()));
  if (args.x.rank == 0 || args.x.cols() != inner.k()) {
    return absl::InvalidArgumentError(
        absl::StrCat("x: expected ", inner.k(), " columns, got ", Describe(args.x)));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("y", args.y, inner.dtype()));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", args.x, "y", args.y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckApart("y", args.y, "x", args.x));
  if (!IsAbsent(args.residual)) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDType("residual", args.residual, inner.dtype()));
    FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", args.x, "residual", args.residual));
    FUSEBLOCK_RETURN_IF_ERROR(CheckApart("y", args.y, "residual", args.residual));
  }
  if (args.rounding == Rounding::kFused && args.params.form != RmsNormForm::kOnce) {
    return absl::InvalidArgumentError("params.form: expected kOnce with kFused");
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckRmsNorm(args.x, IfThere(args.norm), args.params, args.y).status());
  return CheckWorkspace(args.workspace,
                        FfnPathWorkspaceBytes(*args.weights, args.x.rows(), args.rounding));
}

}  // namespace

absl::Span<const Implementation<FfnPathArgs>> FfnPathImplementations() { return kImplementations; }

size_t FfnPathWorkspaceBytes(const FeedForwardWeights& weights, int64_t rows, Rounding rounding) {
  return LayoutOf(weights, rows, rounding).mlp + FeedForwardWorkspaceBytes(weights, rows, rounding);
}

absl::Status FfnPath(const ExecutionContext& context, const FfnPathArgs& args) {
  FUSEBLOCK_RETURN_IF_ERROR(Check(args));
  if (args.x.elements() == 0) return absl::OkStatus();
  return RunFirst("ffn_path", FfnPathImplementations(), context, args);
}

}  // namespace fuseblock
