// A grid over rows of units, one unit a thread: a block has `lanes` units of a row and as many rows
// as that leaves threads for, so that short rows still fill it.
#pragma once

#include "kernels/base/cuda_launch.cuh"

namespace fuseblock {

struct Tiles {
  dim3 block;
  int64_t blocks;
  unsigned column_tiles;  // blocks along a row
};

// Tiles of `threads`, a power of two; blocks is out of the hardware's range, which the launch
// refuses, where a row has too many.
inline Tiles MakeTiles(int64_t rows, int64_t units, unsigned threads) {
  unsigned lanes = threads;
  while (rows > 1 && lanes > 1 && lanes / 2 >= units) lanes /= 2;
  const dim3 block(lanes, threads / lanes);
  const int64_t column_tiles = CeilDiv(units, lanes);
  if (column_tiles > INT32_MAX) return {block, -1, 0};
  return {block, column_tiles * CeilDiv(rows, block.y), static_cast<unsigned>(column_tiles)};
}

// What this thread has; either may lie beyond the end.
struct TilePosition {
  int64_t row, unit;
};

__device__ inline TilePosition PositionInTiles(unsigned column_tiles) {
  const unsigned row_tile = column_tiles == gridDim.x ? 0 : blockIdx.x / column_tiles;
  const unsigned column_tile = blockIdx.x - row_tile * column_tiles;
  return {static_cast<int64_t>(row_tile) * blockDim.y + threadIdx.y,
          static_cast<int64_t>(column_tile) * blockDim.x + threadIdx.x};
}

}  // namespace fuseblock
