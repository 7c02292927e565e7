#include "kernels/mlp_swiglu/mlp_swiglu.h"

namespace fuseblock {

absl::Status MlpSwiGlu(const ExecutionContext& context, const ConstTensorView& x,
                       const FeedForwardWeights& weights, Rounding rounding, const TensorView& y,
                       absl::Span<std::byte> workspace) {
  return FeedForwardOf({FeedForwardForm::kSwiGlu}, context, x, weights, rounding, y, workspace);
}

}  // namespace fuseblock
