// The feed-forward for 1 to 128 tokens on Hopper: norm, gate and up with the function between them,
// down with the residual; three kernels, each of which starts while the one before it ends. Where
// weights are small, more tokens are cut into blocks for the same kernels (CutTokens).
//
// What decides its speed is how fast the weights are read, once. So weights are packed into pieces
// that a bulk copy brings into shared memory as the tensor cores want them; weights take the
// 64-wide side of a product and tokens the other one (8 to 128), which wastes the least energy on
// padding (the H200 runs into its power limit from 64 tokens on); every multiprocessor has an even
// share.
//
// Versions, BF16, H200, one layer of eight in a graph without overlap between layers, us (read
// ceilings of 78 to 79 and 306 to 311), 4096 -> 14336 / 8192 -> 28672:
//                                             1 token        16 tokens      64 tokens     128
//   products of a library                     90 / 325       106 / 342      104 / 354
//   tokens on the 64-wide side                                              112
//   panels of 128 rows, 4 and 2 segments of
//   K, their blocks met on counters           82.1 / 309     83.1 / 314     86.3 / 321    95 / 383
//   panels of 64 rows, 2 and 1 segments       82.9 / 312     84.0 / 317     92.0 / 339   110 / 391
//   more slots for down's activations         81.6 / 306     82.9 / 311     88.4 / 333   105 / 373
// The counters took for granted that all blocks of a panel are on the GPU at once, which another
// stream's kernel can prevent; clusters of 4 would not all find room. What panels of 64 rows cost:
// from 64 tokens on the blocks read as many bytes of activations from the L2 as of weights.
// Did not pay: clusters that share copies (two panels of down their activations, from 64 tokens on:
// 4 to 6 % slower at 4096, 11 to 30 % at 2048 and 1024), the last block to come adds all sums
// (+2.7 us), one persistent kernel (+1 to 2 us), prefetching the next kernel's weights into the L2.
//
// Small weights, in turns on another card, us:
//                         576 -> 1536 at 1, 64, 128, 256, 512    2048 -> 8192 at 1, 64, 128, 256
//   whole tiles, then the
//   kernels for many      7.3  10.6  13.6  21.9  23.2            28.2  32.9  40.3  62.2
//   blocks of tokens      7.2  10.5  11.3  14.6  16.9            28.2  32.6  40.5  58.6
// At 256 tokens 10.9 and 59 were predicted. Why the first takes 14.6 is not understood; it comes
// with down's wide blocks (192 tokens, in narrow ones, take 12.2).
#include <iterator>

#include "kernels/feed_forward/few_tokens_stages.cuh"

namespace fuseblock {
namespace {

constexpr int kPackBlock = 256;

// In the order of FeedForwardForm.
constexpr const GateUpLaunch* kForms[] = {&kSwiGluLaunch, &kGeGluTanhLaunch, &kGeGluErfLaunch,
                                          &kGeluTanhLaunch, &kGeluErfLaunch};
static_assert(std::size(kForms) == std::size(kFeedForwardForms));

// A matrix of gate and up.
__global__ void __launch_bounds__(kPackBlock)
    PackGateUpKernel(FewTokensPlan plan, int matrix, const uint4* rows, std::byte* packed) {
  const int64_t chunks = plan.hidden / kChunk;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPackBlock + threadIdx.x;
  if (i >= plan.intermediate * chunks) return;
  *reinterpret_cast<uint4*>(packed + plan.GateUpOffset(matrix, i / chunks, i % chunks)) = rows[i];
}

__global__ void __launch_bounds__(kPackBlock)
    PackDownKernel(FewTokensPlan plan, const uint4* down, std::byte* packed) {
  const int64_t chunks = plan.intermediate / kChunk;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPackBlock + threadIdx.x;
  if (i >= plan.hidden * chunks) return;
  *reinterpret_cast<uint4*>(packed + plan.DownOffset(i / chunks, i % chunks)) = down[i];
}

}  // namespace

int PackFewTokens(const FewTokensPlan* plan, const void* gate, const void* up, const void* down,
                  void* packed, void* stream_pointer) {
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  auto* to = static_cast<std::byte*>(packed);
  // What the last part lacks.
  cudaError_t error =
      cudaMemsetAsync(packed, 0, static_cast<size_t>(plan->gate_up_bytes()), stream);
  const int64_t blocks = CeilDiv(plan->hidden * plan->intermediate / kChunk, kPackBlock);
  const void* matrices[] = {gate, up};
  for (int i = 0; i < plan->matrices && error == cudaSuccess; ++i) {
    const void* rows = matrices[2 - plan->matrices + i];
    error = Launch(PackGateUpKernel, blocks, dim3(kPackBlock), stream, *plan, i,
                   static_cast<const uint4*>(rows), to);
  }
  if (error == cudaSuccess) {
    error = Launch(PackDownKernel, blocks, dim3(kPackBlock), stream, *plan,
                   static_cast<const uint4*>(down), to + plan->gate_up_bytes());
  }
  return error;
}

int RunFewTokens(const FuseblockFewTokens* args, void* stream_pointer) {
  if (args->x.cols != args->plan->hidden || !Aligned16(args->x) || !Aligned16(args->y) ||
      !Aligned16(args->residual) || !Aligned16(args->norm, 1, 0, 1)) {
    return cudaErrorInvalidValue;
  }
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  cudaError_t error = LaunchFewTokensNorm(*args, stream);
  if (error != cudaSuccess) return error;
  const GateUpLaunch& form = *kForms[args->form];
  if (args->library_down != nullptr) {
    error = form.many(*args, stream);
    return error != cudaSuccess ? error : LaunchLibraryDown(*args, stream);
  }
  const TokenWidths widths = CutTokens(*args->plan, args->x.rows);
  error = widths.gate_up == 0 ? form.many(*args, stream) : form.few(*args, widths.gate_up, stream);
  if (error != cudaSuccess) return error;
  return widths.down == 0 ? LaunchManyTokensDown(*args, stream)
                          : LaunchFewTokensDown(*args, widths.down, stream);
}

}  // namespace fuseblock
