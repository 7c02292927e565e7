#include "kernels/list.h"

#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/block_reduce/block_reduce.h"
#include "kernels/causal_softmax/causal_softmax.h"
#include "kernels/embedding/embedding.h"
#include "kernels/feed_forward/feed_forward.h"
#include "kernels/ffn_path/ffn_path.h"
#include "kernels/geglu/geglu.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/silu/silu.h"
#include "kernels/softmax/softmax.h"
#include "kernels/softmax_masked/softmax_masked.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/swiglu_clamped/swiglu_clamped.h"
#include "kernels/warp_reduce/warp_reduce.h"

namespace fuseblock {
namespace {

template <auto kList>
std::vector<ImplementationInfo> Describe() {
  return DescribeList(kList());
}

constexpr KernelEntry kKernels[] = {
    {"warp_reduce", Describe<WarpReduceRowsImplementations>},
    {"block_reduce", Describe<BlockReduceRowsImplementations>},
    {"add_residual", Describe<AddResidualImplementations>},
    {"silu", Describe<SiluImplementations>},
    {"gelu_erf", Describe<GeluErfImplementations>},
    {"gelu_tanh", Describe<GeluTanhImplementations>},
    {"swiglu", Describe<SwiGluImplementations>},
    {"swiglu_clamped", Describe<SwiGluClampedImplementations>},
    {"geglu", Describe<GeGluImplementations>},
    {"rms_norm", Describe<RmsNormImplementations>},
    {"add_rms_norm", Describe<AddRmsNormImplementations>},
    {"layer_norm", Describe<LayerNormImplementations>},
    {"softmax", Describe<SoftmaxImplementations>},
    {"softmax_masked", Describe<SoftmaxMaskedImplementations>},
    {"causal_softmax", Describe<CausalSoftmaxImplementations>},
    {"embedding", Describe<EmbeddingImplementations>},
    {"rope", Describe<RopeImplementations>},
    {"linear", Describe<LinearImplementations>},
    {"linear_bias_gelu", Describe<LinearImplementations>},
    {"mlp_swiglu", Describe<FeedForwardImplementations>},
    {"mlp_geglu", Describe<FeedForwardImplementations>},
    {"mlp_gelu", Describe<FeedForwardImplementations>},
    {"ffn_path", Describe<FfnPathImplementations>},
};

}  // namespace

absl::Span<const KernelEntry> Kernels() { return kKernels; }

}  // namespace fuseblock
