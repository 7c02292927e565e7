// How the feed-forward for few tokens is cut for one size and one GPU: the packed weights' layout
// and each block's share of them. Arithmetic alone, the same on host and device.
//
// Gate and up lie in groups of 8 rows of gate and the same 8 of up, so that both sums of a column
// meet in one thread; without a gate a group is 16 rows of up. A part is `groups` of them; a block
// has `parts_per_block`. Along K a part is cut into pieces of `depth` tiles of 64, a piece into two
// halves, one for each warpgroup:
//   [part][piece][half][tile][group][16 rows][128 bytes, swizzled].
// What the last parts lack in groups is zero.
//
// Down lies in panels of 64 rows, K in `segments` of equal length, each the share of one block:
//   [panel][segment][tile][64 rows][128 bytes, swizzled].
// The sums of a panel's segments are added in order. Every kernel that computes with these weights
// must use the same segments: they decide a row's bits.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/ceil_div.h"
#include "kernels/base/dtype.h"
#include "kernels/feed_forward/form.h"

namespace fuseblock {

inline constexpr int kFewTokensMax = 128;
// What a call's tokens are padded to: the columns of its products.
inline constexpr int kFewTokensWidths[] = {8, 16, 32, 64, 128};
// More tokens lie in blocks of that many, whatever the kernels take at a time.
inline constexpr int kTokenBlock = kFewTokensMax;
// The narrowest part of a tile of tokens that a kernel's block takes. (Narrower tiles come several
// to a slot of the ring.)
inline constexpr int kNarrowPart = 64;
inline constexpr int kTileK = 64;                 // elements of K in a tile: 128 bytes
inline constexpr int kTileRowBytes = 2 * kTileK;  // of a row in a tile
inline constexpr int kGroupRows = 16;             // of gate and up
inline constexpr int kGroupBytes = kGroupRows * kTileRowBytes;  // of a tile's group
inline constexpr int kPanelRows = 64;                           // rows of down in a panel
inline constexpr int kPanelTileBytes = kPanelRows * kTileRowBytes;
inline constexpr int kPanelDepth = 2;            // tiles of a piece of down
inline constexpr int kSegmentsMax = 2;           // of K in down
inline constexpr int kPieceBytesMax = 16 << 10;  // a slot of the ring in shared memory

struct FewTokensPlan {
  int64_t hidden = 0, intermediate = 0;
  int32_t multiprocessors = 0;
  int32_t matrices = 0;    // whose rows share a group: gate and up, or up alone
  int32_t all_groups = 0;  // of the columns
  int32_t groups = 0;      // of a part
  int32_t depth = 0;       // tiles of a piece of gate and up
  int32_t parts_per_block = 0;
  int32_t gate_up_blocks = 0;
  int32_t segments = 0;     // of K in down
  int32_t down_blocks = 0;  // panels times segments
  // Pieces that a block has asked for and that have not come. More would only queue up in the
  // memory system, in front of everybody's other loads. (Fewer where the ring has no room.)
  int32_t gate_up_in_flight = 0, down_in_flight = 0;

  constexpr int64_t gate_up_tiles() const { return hidden / kTileK; }
  constexpr int64_t down_tiles() const { return intermediate / kTileK / segments; }  // of a segment
  constexpr int64_t part_bytes() const { return gate_up_tiles() * groups * kGroupBytes; }
  constexpr int64_t gate_up_bytes() const {
    return int64_t{gate_up_blocks} * parts_per_block * part_bytes();
  }
  constexpr int64_t down_bytes() const { return hidden * intermediate * 2; }
  constexpr int64_t bytes() const { return gate_up_bytes() + down_bytes(); }

  // Columns of the product that a group gives, which are its rows of each matrix.
  constexpr int group_columns() const { return kGroupRows / matrices; }

  // Groups of a part that a warpgroup has, and the one that it begins with.
  constexpr int half_groups(int half) const { return half == 0 ? (groups + 1) / 2 : groups / 2; }
  constexpr int half_first(int half) const { return half == 0 ? 0 : (groups + 1) / 2; }
  // Products of 64 rows that a warpgroup needs for its groups: 1 or 2.
  constexpr int products() const { return (half_groups(0) + 3) / 4; }

  // Where the 16-byte chunk with W[row, 8 chunk .. 8 chunk + 7] of that matrix lies, of gate (0)
  // and up (1), or of up (0) alone, in the packed gate and up.
  constexpr int64_t GateUpOffset(int matrix, int64_t row, int64_t chunk) const {
    const int64_t group = row / group_columns() % groups;
    const int64_t row_in_group = matrix * group_columns() + row % group_columns();
    const int half = group >= half_first(1) ? 1 : 0;
    const int64_t tile = chunk / 8;
    const int64_t piece_tile = tile / depth * depth;  // the first of its piece
    const int64_t piece_tiles =
        piece_tile + depth <= gate_up_tiles() ? depth : gate_up_tiles() - piece_tile;
    return row / group_columns() / groups * part_bytes() + piece_tile * groups * kGroupBytes +
           (half == 1 ? piece_tiles * half_groups(0) * kGroupBytes : 0) +
           ((tile - piece_tile) * half_groups(half) + group - half_first(half)) * kGroupBytes +
           row_in_group * kTileRowBytes + SwizzledChunk(row_in_group, chunk % 8) * 16;
  }
  // The same of down, in the packed down.
  constexpr int64_t DownOffset(int64_t row, int64_t chunk) const {
    const int64_t tile = chunk / 8;
    return (row / kPanelRows * segments * down_tiles() + tile) * kPanelTileBytes +
           row % kPanelRows * kTileRowBytes + SwizzledChunk(row, chunk % 8) * 16;
  }
  // Where a chunk of an activation lies in tiles of `width` tokens: [tile][token][128 bytes].
  static constexpr int64_t ActivationOffset(int width, int64_t token, int64_t chunk) {
    return (chunk / 8 * width + token) * kTileRowBytes + SwizzledChunk(token, chunk % 8) * 16;
  }
  // What that offset is more for the tokens from `token` on, a multiple of 8, of more than one
  // block: [block of kTokenBlock tokens][tile of K, of `tiles`][token][128 bytes].
  static constexpr int64_t TokensOffset(int64_t token, int64_t tiles) {
    return (token / kTokenBlock * tiles * kTokenBlock + token % kTokenBlock) * kTileRowBytes;
  }
  static constexpr int64_t SwizzledChunk(int64_t row, int64_t chunk) { return chunk ^ (row % 8); }
};

// The ring of one kernel in shared memory, for tokens padded to `width`: slots of 16 KiB for
// weights, slots of whole tiles for activations, room for the other segment's sums, barriers.
struct FewTokensRing {
  int weight_slots, activation_slots;
  int activation_tiles;  // of a slot
  int exchange_bytes;    // down's: what the other block of a panel sends

  constexpr int activation_slot_bytes(int width) const {
    return activation_tiles * width * kTileRowBytes;
  }
  constexpr int shared_bytes(int width) const {
    return weight_slots * kPieceBytesMax + activation_slots * activation_slot_bytes(width) +
           exchange_bytes + 16 * (weight_slots + activation_slots);
  }
};
// From 64 tokens on most of a small K's tiles of activations are asked for at once.
constexpr FewTokensRing GateUpRing(int width) {
  if (width == 128) return {10, 4, 1, 0};
  if (width == 64) return {10, 8, 1, 0};
  return {12, 4, 64 / width, 0};
}
// With room for the exchange: half of the block's 64 x width sums. From 64 tokens on a block reads
// as many bytes of activations as of weights.
constexpr FewTokensRing DownRing(int width) {
  const int exchange_bytes = kPanelRows / 2 * width * 4;
  if (width == 128) return {6, 7, 1, exchange_bytes};
  if (width == 64) return {7, 12, 1, exchange_bytes};
  return {11, 4, 64 / width, exchange_bytes};
}

// ---- the kernels for many tokens: tiles of kTokenBlock tokens by each block of a cluster of two

inline constexpr int kClusterBlocks = 2;
inline constexpr int kClusterTokens = kClusterBlocks * kTokenBlock;

// How many of `tiles` for each cluster's tokens the clusters have one after the other.
constexpr int64_t ManyTokensRounds(const FewTokensPlan& plan, int64_t tokens, int64_t tiles) {
  const int64_t all = CeilDiv(tokens, kClusterTokens) * tiles;
  const int64_t clusters = plan.multiprocessors / kClusterBlocks;
  return CeilDiv(all, clusters);
}

// The groups of gate and up in a tile, of two numbers the one with which all clusters are done
// sooner; of equals the larger, which reads fewer bytes for a product.
inline constexpr int kManyGroups[] = {14, 16};
constexpr int ManyTokensGroups(const FewTokensPlan& plan, int64_t tokens) {
  const auto time = [&](int groups) {
    const int64_t columns = CeilDiv(plan.all_groups, groups);
    return ManyTokensRounds(plan, tokens, columns) * groups;
  };
  return time(kManyGroups[0]) < time(kManyGroups[1]) ? kManyGroups[0] : kManyGroups[1];
}

// The panels of down in a tile, 4 or 2, and whether two clusters share K's segments: as the
// clusters are done soonest.
struct ManyTokensDownCut {
  int panels, parts;
};
constexpr ManyTokensDownCut CutManyTokensDown(const FewTokensPlan& plan, int64_t tokens) {
  ManyTokensDownCut best{};
  int64_t least = 0;
  for (const int panels : {4, 2}) {
    for (int parts = 1; parts <= plan.segments; ++parts) {
      const int64_t columns = CeilDiv(plan.hidden / kPanelRows, panels);
      const int64_t rounds = ManyTokensRounds(plan, tokens, columns * parts);
      if (parts > 1 && rounds > 1) continue;  // there is room for the sums of one
      const int64_t time = rounds * panels * (kSegmentsMax / parts);
      if (best.panels == 0 || time < least) {
        least = time;
        best = {panels, parts};
      }
    }
  }
  return best;
}

// Where down has segments, their sums meet in memory: counts of warps that were there come first,
// then the sums of every block of the GPU.
inline constexpr int kManyMeetings = 1 << 11;
constexpr int64_t ManyTokensMeetingBytes(const FewTokensPlan& plan) {
  constexpr int64_t kSumsBytes = int64_t{kTokenBlock} * 4 * kPanelRows * 4;
  return plan.segments == 1 ? 0 : kManyMeetings * 4 + plan.multiprocessors * kSumsBytes;
}

inline constexpr int kSharedBytesMax = 227 << 10;  // of a block on Hopper

// The width for that many tokens, 1 to kFewTokensMax.
constexpr int FewTokensWidth(int64_t tokens) {
  for (const int width : kFewTokensWidths) {
    if (tokens <= width) return width;
  }
  return 0;
}

// ---- which kernels take a call, and how many tokens a block of them has

// The tokens that a tile of activations has in memory.
constexpr int TileWidth(int64_t tokens) {
  return tokens <= kFewTokensMax ? FewTokensWidth(tokens) : kTokenBlock;
}
constexpr int64_t TokenBlocks(int64_t tokens, int width) { return CeilDiv(tokens, width); }

// The width of a block of the kernels for few tokens, or 0: the kernels for many.
struct TokenWidths {
  int gate_up, down;
};

// Where weights are small a call takes as long as one of its blocks, however much of the GPU is
// idle beside them: so tokens are cut among more blocks, as narrow as there is room for. Every
// block of tokens reads the weights again, but from the L2, and while all of them run at once, that
// is, fit the GPU, one to a multiprocessor. There they are sooner done than the kernels for many
// tokens, whose tiles are two to eight times as large.
//
// Down is cut so that it fits beside gate and up: its blocks then have their weights when the
// product comes. Where it does not, they begin when those of gate and up end, and all of them
// should read as little as they can.
constexpr TokenWidths CutTokens(const FewTokensPlan& plan, int64_t tokens) {
  const int whole = TileWidth(tokens);
  const auto narrowest = [&](int64_t blocks, int64_t room, int width) {
    while (width <= whole && TokenBlocks(tokens, width) * blocks > room) width *= 2;
    return width <= whole ? width : 0;
  };
  const int part = whole < kNarrowPart ? whole : kNarrowPart;
  const int64_t all = plan.multiprocessors;
  TokenWidths widths{narrowest(plan.gate_up_blocks, all, part), 0};
  if (widths.gate_up != 0) {
    const int64_t taken = TokenBlocks(tokens, widths.gate_up) * plan.gate_up_blocks;
    widths.down = narrowest(plan.down_blocks, all - taken, part);
  }
  if (widths.down == 0) widths.down = narrowest(plan.down_blocks, all, whole);
  if (tokens <= kFewTokensMax) return {widths.gate_up, widths.down == 0 ? whole : widths.down};
  // The kernel of down for many tokens meets on counts that its kernel of gate and up makes zero.
  if (widths.down == 0) widths.gate_up = 0;
  return widths;
}

// Why these sizes and that dtype cannot be planned for ("takes a multiple of 64 as hidden, not
// 100"), or empty.
std::string WhyNoFewTokensPlan(DType dtype, int64_t hidden, int64_t intermediate);

// Precondition: the above is empty and multiprocessors > 0.
FewTokensPlan PlanFewTokens(FeedForwardForm form, int64_t hidden, int64_t intermediate,
                            int multiprocessors);

}  // namespace fuseblock
