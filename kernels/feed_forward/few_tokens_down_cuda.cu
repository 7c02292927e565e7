// The third kernel of few_tokens_cuda.cu.
#include "kernels/feed_forward/few_tokens_down.cuh"
#include "kernels/feed_forward/few_tokens_stages.cuh"

namespace fuseblock {

cudaError_t LaunchFewTokensDown(const FuseblockFewTokens& args, int width, cudaStream_t stream) {
  const FewTokensPlan& plan = *args.plan;
  DownParams params{};
  params.plan = plan;
  params.weights = static_cast<const std::byte*>(args.packed) + plan.gate_up_bytes();
  params.product = static_cast<const std::byte*>(args.product);
  SetDownOperands(args, params);
  params.tokens = static_cast<int>(args.x.rows);
  params.tile_width = TileWidth(args.x.rows);
  return VisitFewTokens(args.x.dtype, width, [&](auto value, auto of_width) {
    using T = decltype(value);
    constexpr int kWidth = decltype(of_width)::value;
    const auto kernel = plan.segments == 1 ? DownKernel<T, kWidth, 1> : DownKernel<T, kWidth, 2>;
    return LaunchStreaming(kernel, FewTokensGrid(args, plan.down_blocks, kWidth), kDownThreads,
                           DownRing(kWidth).shared_bytes(kWidth), plan.segments, stream, params);
  });
}

}  // namespace fuseblock
