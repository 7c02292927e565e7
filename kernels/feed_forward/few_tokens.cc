// The host side of the feed-forward of few tokens: what is taken, packing, the run.
#include "kernels/feed_forward/few_tokens.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/align.h"
#include "kernels/base/cuda.h"
#include "kernels/base/cuda_rows.h"
#include "kernels/base/status.h"
#include "kernels/feed_forward/feed_forward.h"
#include "kernels/feed_forward/few_tokens_cuda.h"
#include "kernels/linear/linear_packed.h"

namespace fuseblock {
namespace {

constexpr char kLauncher[] = "few_tokens";
constexpr char kNotFused[] = "rounds as fused, not as hf";

// Bytes of a call's activations in tiles.
int64_t TileBytes(int64_t rows, int64_t columns) {
  const int width = TileWidth(rows);
  return AlignTensor(TokenBlocks(rows, width) * width * columns * 2);
}

}  // namespace

std::string FewTokens::WhyNot(Device device, FeedForwardForm form, DType dtype, int64_t hidden,
                              int64_t intermediate, Rounding rounding, bool biases) {
  if (device.type != DeviceType::kCuda) return "runs on CUDA";
  if (rounding != Rounding::kFused) return kNotFused;
  if (biases && EntryOf(form).gated) return "takes no biases beside a gate";
  if (std::string reason = WhyNoFewTokensPlan(dtype, hidden, intermediate); !reason.empty()) {
    return reason;
  }
  if (std::string reason = FewTokensUnavailable(nullptr); !reason.empty()) return reason;
  FuseblockCudaDevice properties;
  if (CudaRuntime()->device_properties(device.index, &properties) != 0) {
    return "the device's properties cannot be read";
  }
  if (properties.major != 9 || properties.minor != 0) {
    return absl::StrCat("runs on sm_90, not on sm_", properties.major, properties.minor);
  }
  return "";
}

FewTokensPlan FewTokens::PlanFor(Device device, FeedForwardForm form, int64_t hidden,
                                 int64_t intermediate) {
  FuseblockCudaDevice properties{};
  CudaRuntime()->device_properties(device.index, &properties);
  return PlanFewTokens(form, hidden, intermediate, properties.multiprocessors);
}

absl::StatusOr<FewTokens> FewTokens::Pack(const FewTokensPlan& plan,
                                          const FeedForwardWeights& weights) {
  const Device device = weights.device();
  FewTokens few;
  few.form_ = weights.form;
  few.plan_ = plan;
  few.up_bias_ = weights.up.packed().bias_data();
  few.down_bias_ = weights.down.packed().bias_data();
  FUSEBLOCK_ASSIGN_OR_RETURN(
      few.packed_,
      Buffer::Allocate(MemoryKind::kDevice, static_cast<size_t>(plan.bytes()), device));
  FUSEBLOCK_RETURN_IF_ERROR(UseCudaDevice(device));
  auto* pack = CudaLauncher<FuseblockFewTokensPack>("few_tokens_pack");
  const void* gate = EntryOf(weights.form).gated ? weights.gate.packed().weight.data() : nullptr;
  FUSEBLOCK_RETURN_IF_ERROR(
      CudaStatus("packing a feed-forward",
                 pack(&plan, gate, weights.up.packed().weight.data(),
                      weights.down.packed().weight.data(), few.packed_.data(), nullptr)));
  FUSEBLOCK_RETURN_IF_ERROR(CudaStatus("packing a feed-forward",
                                       CudaRuntime()->stream_synchronize(device.index, nullptr)));
  return few;
}

absl::StatusOr<FewTokensArgs> AsFewTokensArgs(const FewTokens* weights, const ConstTensorView& x,
                                              const TensorView& y,
                                              absl::Span<std::byte> workspace) {
  FewTokensArgs few;
  few.weights = weights;
  few.dtype = x.dtype;
  FUSEBLOCK_ASSIGN_OR_RETURN(few.x, AsRows("x", x));
  FUSEBLOCK_ASSIGN_OR_RETURN(few.y, AsRows("y", y));
  few.y_dtype = y.dtype;
  few.workspace = workspace;
  return few;
}

std::string FewTokensUnavailable(std::string* detail) {
  return CudaKernelUnavailable(kLauncher, detail);
}

std::string WhyNotFewTokens(const FewTokensArgs& args) {
  if (args.path.has_value() && args.path->norm.rank != 0 && args.path->norm.dtype != args.dtype) {
    return absl::StrCat("takes a norm of x's dtype, not ",
                        std::string(Name(args.path->norm.dtype)));
  }
  bool aligned =
      Aligned16(CudaRows(args.x, args.dtype)) && Aligned16(CudaRows(args.y, args.y_dtype));
  if (args.path.has_value() && args.path->residual.rank != 0) {
    const absl::StatusOr<ConstRows> residual = AsRows("residual", args.path->residual);
    if (!residual.ok()) return std::string(residual.status().message());
    aligned = aligned && Aligned16(CudaRows(*residual, args.dtype));
  }
  return aligned ? "" : "takes rows on 16-byte boundaries";
}

std::string WhyNotFewTokens(const FeedForwardWeights& weights, Rounding rounding,
                            const absl::StatusOr<FewTokensArgs>& args) {
  if (weights.few == nullptr) return weights.no_few;
  if (rounding != Rounding::kFused) return kNotFused;
  return args.ok() ? WhyNotFewTokens(*args) : std::string(args.status().message());
}

size_t FewTokensWorkspaceBytes(const FewTokens& weights, int64_t rows) {
  if (rows == 0) return 0;
  const FewTokensPlan& plan = weights.plan();
  return static_cast<size_t>(TileBytes(rows, plan.hidden) + TileBytes(rows, plan.intermediate) +
                             (rows > kFewTokensMax ? ManyTokensMeetingBytes(plan) : 0));
}

absl::Status RunFewTokens(const ExecutionContext& context, const FewTokensArgs& args) {
  auto* run = CudaLauncher<FuseblockFewTokensRun>(kLauncher);
  const FewTokensPlan& plan = args.weights->plan();
  FuseblockFewTokens call{};
  call.plan = &plan;
  call.form = static_cast<int>(args.weights->form());
  call.packed = args.weights->packed();
  call.up_bias = args.weights->up_bias();
  call.down_bias = args.weights->down_bias();
  call.x = CudaRows(args.x, args.dtype);
  call.y = CudaRows(args.y, args.y_dtype);
  std::byte* next = args.workspace.data();
  const auto take = [&](int64_t bytes) { return std::exchange(next, next + bytes); };
  call.n = take(TileBytes(args.x.rows, plan.hidden));
  call.product = take(TileBytes(args.x.rows, plan.intermediate));
  call.meetings = next;
  if (args.path.has_value()) {
    call.on_path = 1;
    if (args.path->residual.rank != 0) {
      FUSEBLOCK_ASSIGN_OR_RETURN(const ConstRows rows, AsRows("residual", args.path->residual));
      call.residual = CudaRows(rows, args.dtype);
    }
    if (args.path->norm.rank != 0) call.norm = args.path->norm.data;
    call.eps = args.path->eps;
    call.norm_offset = args.path->norm_offset;
  }
  const FewTokens& weights = *args.weights;
  const bool plain = call.residual.data == nullptr && args.y_dtype == args.dtype;
  if (weights.library_down != nullptr && plain && args.x.rows > kFewTokensMax &&
      args.x.rows >= weights.library_down_from) {
    call.library_down = weights.library_down;
  }
  return CudaStatus(kLauncher, run(&call, context.stream));
}

}  // namespace fuseblock
