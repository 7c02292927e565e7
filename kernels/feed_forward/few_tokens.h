// The feed-forward on Hopper: weights packed for it once, and its run, by kernels for few tokens
// (blocks of up to 128) and for many, which give a row the same bits. feed_forward and ffn_path
// list it as "wgmma"; few_tokens_cuda.cu and many_tokens_cuda.cu hold the kernels.
//
// The packed copy lies beside the plain weights, from which the composed products take rows that
// lie badly. It gives a row the same bits as those products, as far as cuBLASLt sums in the same
// order: proven on the weights themselves when they are prepared.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/rounding.h"
#include "kernels/feed_forward/few_tokens_plan.h"
#include "kernels/linear/linear.h"

namespace fuseblock {

struct FeedForwardWeights;

class FewTokens {
 public:
  // Why weights of that form, that dtype and those sizes are not packed on that device, or empty.
  static std::string WhyNot(Device device, FeedForwardForm form, DType dtype, int64_t hidden,
                            int64_t intermediate, Rounding rounding, bool biases);
  // Precondition: the above is empty, here and below.
  static FewTokensPlan PlanFor(Device device, FeedForwardForm form, int64_t hidden,
                               int64_t intermediate);
  // Packs plain weights on the device. RESOURCE_EXHAUSTED when it has no room. Whether room must be
  // kept for what comes later and cannot be done without, plain weights, is the caller's to know.
  // Biases are read where the plain weights have them, which must live as long.
  static absl::StatusOr<FewTokens> Pack(const FewTokensPlan& plan,
                                        const FeedForwardWeights& weights);

  FeedForwardForm form() const { return form_; }
  const FewTokensPlan& plan() const { return plan_; }
  const float* up_bias() const { return up_bias_; }  // on the device; null: none
  const float* down_bias() const { return down_bias_; }
  size_t bytes() const { return packed_.size(); }
  const std::byte* packed() const { return packed_.data(); }

  // Whether the composed products give a row the same bits, as far as it was proven.
  bool as_products = false;
  // The plan of the plain down weight, and the number of tokens from which that product takes
  // down's part: it gives the same bits, sooner. Null: nowhere.
  const void* library_down = nullptr;
  int64_t library_down_from = 0;

 private:
  FeedForwardForm form_{};
  FewTokensPlan plan_;
  const float* up_bias_ = nullptr;
  const float* down_bias_ = nullptr;
  Buffer packed_;
};

// y = mlp(x), or, where path is set, h = x (+ residual), y = h + mlp(norm(h)).
struct FewTokensPath {
  ConstTensorView residual;  // rank 0: none
  ConstTensorView norm;      // [hidden] of the weights' dtype; rank 0: none
  float eps = 0, norm_offset = 0;
};
struct FewTokensArgs {
  const FewTokens* weights;
  DType dtype;
  ConstRows x;
  Rows y;
  DType y_dtype;  // dtype or FP32
  std::optional<FewTokensPath> path;
  absl::Span<std::byte> workspace;  // FewTokensWorkspaceBytes, 256-byte aligned
};

// The operands, with no path around them. INVALID_ARGUMENT when x or y cannot be taken as rows.
absl::StatusOr<FewTokensArgs> AsFewTokensArgs(const FewTokens* weights, const ConstTensorView& x,
                                              const TensorView& y, absl::Span<std::byte> workspace);

// For the lists: whether this machine has the kernels at all.
std::string FewTokensUnavailable(std::string* detail);
// Why these operands cannot be taken, or empty.
std::string WhyNotFewTokens(const FewTokensArgs& args);
// The same in an implementation's list, where the weights may not be packed, the rounding may be
// another and the operands may not be such.
std::string WhyNotFewTokens(const FeedForwardWeights& weights, Rounding rounding,
                            const absl::StatusOr<FewTokensArgs>& args);

size_t FewTokensWorkspaceBytes(const FewTokens& weights, int64_t rows);
absl::Status RunFewTokens(const ExecutionContext& context, const FewTokensArgs& args);

}  // namespace fuseblock
