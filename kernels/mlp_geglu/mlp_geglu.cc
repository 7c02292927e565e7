#include "kernels/mlp_geglu/mlp_geglu.h"

namespace fuseblock {

absl::Status MlpGeGlu(const ExecutionContext& context, const ConstTensorView& x,
                      const FeedForwardWeights& weights, Rounding rounding, const TensorView& y,
                      absl::Span<std::byte> workspace) {
  return FeedForwardOf({FeedForwardForm::kGeGluTanh, FeedForwardForm::kGeGluErf}, context, x,
                       weights, rounding, y, workspace);
}

}  // namespace fuseblock
