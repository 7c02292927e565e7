// The second kernels of few_tokens_cuda.cu and many_tokens_cuda.cu as launches of one form: each
// form instantiates them in a file of its own, which compile side by side.
#pragma once

#include "kernels/feed_forward/few_tokens_gate_up.cuh"
#include "kernels/feed_forward/few_tokens_stages.cuh"
#include "kernels/feed_forward/many_tokens_gate_up.cuh"
#include "kernels/feed_forward/many_tokens_launch.cuh"

namespace fuseblock {

template <typename Form>
cudaError_t LaunchFewTokensGateUp(const FuseblockFewTokens& args, int width, cudaStream_t stream) {
  const FewTokensPlan& plan = *args.plan;
  const GateUpParams params{plan,
                            static_cast<const std::byte*>(args.packed),
                            static_cast<const std::byte*>(args.n),
                            static_cast<std::byte*>(args.product),
                            args.up_bias,
                            static_cast<int>(args.x.rows),
                            TileWidth(args.x.rows)};
  return VisitFewTokens(args.x.dtype, width, [&](auto value, auto of_width) {
    using T = decltype(value);
    constexpr int kWidth = decltype(of_width)::value;
    const auto kernel =
        plan.products() == 1 ? GateUpKernel<T, kWidth, 1, Form> : GateUpKernel<T, kWidth, 2, Form>;
    return LaunchStreaming(kernel, FewTokensGrid(args, plan.gate_up_blocks, kWidth), kGateUpThreads,
                           GateUpRing(kWidth).shared_bytes(kWidth), 1, stream, params);
  });
}

template <typename Form>
cudaError_t LaunchManyTokensGateUp(const FuseblockFewTokens& args, cudaStream_t stream) {
  const FewTokensPlan& plan = *args.plan;
  const int groups = ManyTokensGroups(plan, args.x.rows);
  ManyGateUpParams params{};
  SetTiles(args, plan.all_groups, groups, 1, plan.hidden, params);
  params.weights = static_cast<const std::byte*>(args.packed);
  params.activations = static_cast<const std::byte*>(args.n);
  params.product = static_cast<std::byte*>(args.product);
  params.in_rows = args.library_down != nullptr;
  params.bias = args.up_bias;
  params.meetings = static_cast<int*>(args.meetings);
  params.meeting_count = plan.segments > 1 ? kManyMeetings : 0;
  const auto launch = [&](auto value) {
    using T = decltype(value);
    return groups == kManyGroups[0]
               ? LaunchMany(ManyGateUpKernel<T, kManyGroups[0], Form>,
                            kManySharedBytes<kManyGateUpColumns<kManyGroups[0]>>, params, stream)
               : LaunchMany(ManyGateUpKernel<T, kManyGroups[1], Form>,
                            kManySharedBytes<kManyGateUpColumns<kManyGroups[1]>>, params, stream);
  };
  return args.x.dtype == static_cast<int>(DType::kF16) ? launch(__half{}) : launch(__nv_bfloat16{});
}

template <typename Form>
inline constexpr GateUpLaunch kGateUpLaunchOf{LaunchFewTokensGateUp<Form>,
                                              LaunchManyTokensGateUp<Form>};

}  // namespace fuseblock
