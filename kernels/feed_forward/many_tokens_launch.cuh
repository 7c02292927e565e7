// How the two products of many_tokens_cuda.cu are cut into tiles and launched.
#pragma once

#include <algorithm>

#include "kernels/feed_forward/few_tokens_stages.cuh"
#include "kernels/feed_forward/many_tokens_pipe.cuh"

namespace fuseblock {

constexpr int kTogether = 8;  // tiles of tokens; 4 and 16 are as fast

// What both products have in common. `columns` are cut into tiles of `of_tile`.
inline void SetTiles(const FuseblockFewTokens& args, int64_t columns, int of_tile, int parts,
                     int64_t k, ManyParams& params) {
  const int tokens = static_cast<int>(CeilDiv(args.x.rows, kClusterTokens));
  params.plan = *args.plan;
  params.tokens = static_cast<int>(args.x.rows);
  params.token_blocks = static_cast<int>(CeilDiv(args.x.rows, kTokenBlock));
  params.tiles = {static_cast<int>(CeilDiv(columns, of_tile)), tokens, std::min(tokens, kTogether),
                  parts, static_cast<int>(k / kTileK / parts)};
}

template <typename Params>
cudaError_t LaunchMany(void (*kernel)(Params), int shared_bytes, const Params& params,
                       cudaStream_t stream) {
  // As many clusters as find room, each with as many tiles.
  const int64_t tiles = params.tiles.count();
  const int64_t rounds = CeilDiv(tiles, params.plan.multiprocessors / kClusterBlocks);
  const auto clusters = static_cast<unsigned>(CeilDiv(tiles, rounds));
  return LaunchStreaming(kernel, dim3(clusters * kClusterBlocks), kManyThreads, shared_bytes,
                         kClusterBlocks, stream, params);
}

}  // namespace fuseblock
