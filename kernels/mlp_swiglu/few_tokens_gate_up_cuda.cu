// The second kernel of few_tokens_cuda.cu.
#include "kernels/mlp_swiglu/few_tokens_gate_up.cuh"
#include "kernels/mlp_swiglu/few_tokens_stages.cuh"

namespace fuseblock {

cudaError_t LaunchFewTokensGateUp(const FuseblockFewTokens& args, int width, cudaStream_t stream) {
  const FewTokensPlan& plan = *args.plan;
  const GateUpParams params{plan, static_cast<const std::byte*>(args.packed),
                            static_cast<const std::byte*>(args.n),
                            static_cast<std::byte*>(args.product), static_cast<int>(args.x.rows)};
  return VisitFewTokens(args.x.dtype, width, [&](auto value, auto of_width) {
    using T = decltype(value);
    constexpr int kWidth = decltype(of_width)::value;
    const auto kernel =
        plan.products() == 1 ? GateUpKernel<T, kWidth, 1> : GateUpKernel<T, kWidth, 2>;
    return LaunchStreaming(kernel, plan.gate_up_blocks, kGateUpThreads,
                           GateUpRing(kWidth).shared_bytes(kWidth), 1, stream, params);
  });
}

}  // namespace fuseblock
