#include "kernels/mlp_gelu/mlp_gelu.h"

namespace fuseblock {

absl::Status MlpGelu(const ExecutionContext& context, const ConstTensorView& x,
                     const FeedForwardWeights& weights, Rounding rounding, const TensorView& y,
                     absl::Span<std::byte> workspace) {
  return FeedForwardOf({FeedForwardForm::kGeluTanh, FeedForwardForm::kGeluErf}, context, x, weights,
                       rounding, y, workspace);
}

}  // namespace fuseblock
