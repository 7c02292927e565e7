// The feed-forward for more than 128 tokens on Hopper, from the weights that are packed for few:
// the norm of few_tokens_norm_cuda.cu, then two persistent kernels, gate and up with the gate in
// their epilogue, down with the residual stream in its own, each of which starts while the one
// before it ends. Sums are made in the order of the kernels for few tokens, so that a row has one
// result.
//
// What decides their speed is power: the H200 runs at its limit of 700 W, with the clock at 1.3 to
// 1.4 GHz of 1.98. What costs no energy costs little time (the epilogue of gate and up is 7 % of
// its cycles; without it the clock falls and 4 % of the time are gone), and the other way round.
//
// Versions, BF16, H200, us for one layer of eight in a graph: all (gate and up, down).
//
//                       4096 -> 14336, 256  1024            4096              8192 -> 28672, 256
//   PyTorch eager       190                 623             2429              639
//   torch.compile       173 to 176          562 to 566
//   library's products  (104, 57)           (364, 177)      (1461, 698)       (379, 198)
//   1                   358 (135, 222)      786 (481, 234)  2857 (1920, 930)
//   2                   171 (106, 60)       596 (387, 196)  2382 (1542, 784)  634 (412, 214)
//   3                   168 (106, 59)       587 (373, 196)  2383 (1498, 777)  625 (402, 210)
//
//   1: tokens on the 64-wide side, 14 groups a tile, 4 panels
//   2: arrivals at the other block's barriers that fence nothing, segments shared by two blocks
//   3: 16 groups where as many rounds do, x brought into the L2
//
// Then, where K is one segment, down by the library's product of the plain weight, from a gated
// product in rows: on one H200 0.971 -> 1.001 of torch.compile at 8192 -> 28672 and 1024 tokens,
// 0.981 -> 0.996 at 4096, 0.973 -> 1.006 at 256; on another 0.962, 0.983, 0.985.
//
// The main loops run at 92.5 % of the tensor rate whatever is loaded: a product of 64 rows takes 9
// cycles more than it should, at 128, 224 and 256 columns. Two segments of K cost down some 8 %
// where a block does both (by its cycles; 128 KiB wait in the L2). Did not pay: one warpgroup some
// tiles behind the other, so that one multiplies while the other stores (as many cycles fewer, the
// clock as much lower); 4 or 16 tiles of tokens side by side; the library's product for down (two
// of half of K with FP32 sums between: 5 % slower than this at 1024 and 4096 tokens); this kernel
// for 65 to 128 tokens.
#include "kernels/feed_forward/many_tokens_down.cuh"
#include "kernels/feed_forward/many_tokens_launch.cuh"
#include "kernels/linear/linear_cuda.h"

namespace fuseblock {

cudaError_t LaunchManyTokensDown(const FuseblockFewTokens& args, cudaStream_t stream) {
  const FewTokensPlan& plan = *args.plan;
  const ManyTokensDownCut cut = CutManyTokensDown(plan, args.x.rows);
  ManyDownParams params{};
  SetTiles(args, plan.hidden / kPanelRows, cut.panels, cut.parts, plan.intermediate, params);
  params.weights = static_cast<const std::byte*>(args.packed) + plan.gate_up_bytes();
  params.activations = static_cast<const std::byte*>(args.product);
  params.segments = plan.segments;
  SetDownOperands(args, params);
  if (plan.segments > 1) {
    params.meetings = static_cast<int*>(args.meetings);
    params.waiting = reinterpret_cast<float4*>(params.meetings + kManyMeetings);
  }
  const auto launch = [&](auto value, auto biased) {
    using T = decltype(value);
    constexpr bool kBiased = decltype(biased)::value;
    return cut.panels == 2 ? LaunchMany(ManyDownKernel<T, 2, kBiased>,
                                        kManySharedBytes<2 * kPanelRows>, params, stream)
                           : LaunchMany(ManyDownKernel<T, 4, kBiased>,
                                        kManySharedBytes<4 * kPanelRows>, params, stream);
  };
  const auto launch_of = [&](auto value) {
    return params.bias == nullptr ? launch(value, std::false_type())
                                  : launch(value, std::true_type());
  };
  return args.x.dtype == static_cast<int>(DType::kF16) ? launch_of(__half{})
                                                       : launch_of(__nv_bfloat16{});
}

cudaError_t LaunchLibraryDown(const FuseblockFewTokens& args, cudaStream_t stream) {
  if (args.residual.data != nullptr || args.y.dtype != args.x.dtype) return cudaErrorInvalidValue;
  const FuseblockCudaRows product{args.product, args.x.dtype, args.x.rows, args.plan->intermediate,
                                  args.plan->intermediate};
  const FuseblockCudaRows add = args.on_path != 0 ? args.x : FuseblockCudaRows{};
  return static_cast<cudaError_t>(RunLinearOnto(args.library_down, product, add, args.y, stream));
}

}  // namespace fuseblock
