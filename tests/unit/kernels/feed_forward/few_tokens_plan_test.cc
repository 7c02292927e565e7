// The plan of the feed-forward for few tokens: every size that models have is covered exactly once
// and fits the hardware; every other size is refused with its reason. Needs no GPU.
#include "kernels/feed_forward/few_tokens_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace fuseblock {
namespace {

constexpr FeedForwardForm kGated = FeedForwardForm::kGeGluTanh, kDense = FeedForwardForm::kGeluErf;

struct Size {
  int64_t hidden, intermediate;
};
constexpr Size kSizes[] = {{64, 128},     {64, 1152},    {256, 28672},  {576, 1536},
                           {2048, 8192},  {2560, 6912},  {3584, 18944}, {4096, 11008},
                           {4096, 14336}, {5120, 13824}, {8192, 28672}};
constexpr int kMultiprocessors[] = {1, 78, 114, 132};

template <typename F>
void ForEveryPlan(F&& f) {
  for (const Size& size : kSizes) {
    for (const int multiprocessors : kMultiprocessors) {
      for (const FeedForwardForm form : {kGated, kDense}) {
        SCOPED_TRACE(::testing::Message()
                     << EntryOf(form).name << " " << size.hidden << "/" << size.intermediate
                     << " on " << multiprocessors << " multiprocessors");
        f(PlanFewTokens(form, size.hidden, size.intermediate, multiprocessors), multiprocessors);
      }
    }
  }
}

// Marks the 16-byte chunk at that offset as used; false when it lies outside, off its boundary, or
// was used before.
bool Take(std::vector<bool>& used, int64_t offset) {
  if (offset < 0 || offset % 16 != 0 || offset / 16 >= static_cast<int64_t>(used.size())) {
    return false;
  }
  if (used[static_cast<size_t>(offset / 16)]) return false;
  used[static_cast<size_t>(offset / 16)] = true;
  return true;
}

TEST(FewTokensPlan, EveryChunkOfGateAndUpHasAPlaceOfItsOwn) {
  for (const FeedForwardForm form : {kGated, kDense}) {
    for (const Size& size :
         {Size{64, 1152}, Size{576, 1536}, Size{2560, 6912}, Size{4096, 11008}}) {
      const FewTokensPlan plan = PlanFewTokens(form, size.hidden, size.intermediate, 132);
      ASSERT_EQ(plan.matrices, form == kGated ? 2 : 1);
      std::vector<bool> used(static_cast<size_t>(plan.gate_up_bytes() / 16));
      for (int64_t row = 0; row < size.intermediate; ++row) {
        for (int64_t chunk = 0; chunk < size.hidden / 8; ++chunk) {
          for (int matrix = 0; matrix < plan.matrices; ++matrix) {
            ASSERT_TRUE(Take(used, plan.GateUpOffset(matrix, row, chunk))) << row << ", " << chunk;
          }
        }
      }
    }
  }
}

// In a group, 8 rows of gate beside the same 8 of up, or 16 rows of up: what the products' sums are
// taken to be.
TEST(FewTokensPlan, AGroupIsSixteenRows) {
  const FewTokensPlan gated = PlanFewTokens(kGated, 576, 1536, 132);
  EXPECT_EQ(gated.all_groups, 192);
  EXPECT_EQ(gated.GateUpOffset(1, 0, 0), gated.GateUpOffset(0, 0, 0) + 8 * kTileRowBytes);
  const FewTokensPlan dense = PlanFewTokens(kDense, 576, 1536, 132);
  EXPECT_EQ(dense.all_groups, 96);
  EXPECT_EQ(dense.GateUpOffset(0, 8, 0), dense.GateUpOffset(0, 0, 0) + 8 * kTileRowBytes);
}

TEST(FewTokensPlan, EveryChunkOfDownHasAPlaceOfItsOwnAndNoneIsLeft) {
  for (const Size& size : {Size{64, 128}, Size{576, 1536}, Size{2560, 6912}, Size{5120, 13824}}) {
    const FewTokensPlan plan = PlanFewTokens(kGated, size.hidden, size.intermediate, 132);
    std::vector<bool> used(static_cast<size_t>(plan.down_bytes() / 16));
    for (int64_t row = 0; row < size.hidden; ++row) {
      for (int64_t chunk = 0; chunk < size.intermediate / 8; ++chunk) {
        ASSERT_TRUE(Take(used, plan.DownOffset(row, chunk))) << row << ", " << chunk;
      }
    }
    EXPECT_EQ(std::count(used.begin(), used.end(), false), 0);
  }
}

// What a block streams, piece by piece, is what the layout put there: walked as the kernel walks.
TEST(FewTokensPlan, ABlockStreamsItsPartsFromEndToEnd) {
  ForEveryPlan([](const FewTokensPlan& plan, int) {
    int64_t at = 0;
    for (int64_t tile = 0; tile < plan.gate_up_tiles(); tile += plan.depth) {
      const int64_t tiles = std::min<int64_t>(plan.depth, plan.gate_up_tiles() - tile);
      for (const int half : {0, 1}) {
        ASSERT_GT(plan.half_groups(half), 0);
        // The first row in the half's first group, at the piece's first tile.
        const int64_t row = int64_t{plan.half_first(half)} * plan.group_columns();
        if (row < plan.intermediate) {
          ASSERT_EQ(plan.GateUpOffset(0, row, tile * 8), at);
        }
        const int64_t bytes = tiles * plan.half_groups(half) * kGroupBytes;
        ASSERT_LE(bytes, kPieceBytesMax);
        at += bytes;
      }
    }
    EXPECT_EQ(at, plan.part_bytes());
    EXPECT_EQ(plan.DownOffset(kPanelRows, 0), plan.segments * plan.down_tiles() * kPanelTileBytes);
  });
}

TEST(FewTokensPlan, BlocksCoverAllAndFitTheGpu) {
  ForEveryPlan([](const FewTokensPlan& plan, int multiprocessors) {
    const int64_t groups = plan.all_groups;
    EXPECT_EQ(groups * plan.group_columns(), plan.intermediate);
    const int64_t of_block = int64_t{plan.groups} * plan.parts_per_block;
    EXPECT_GE(of_block * plan.gate_up_blocks, groups);
    EXPECT_LT(of_block * (plan.gate_up_blocks - 1), groups);  // none is idle
    EXPECT_LE(plan.gate_up_blocks, multiprocessors);
    EXPECT_LE(plan.products(), 2);
    EXPECT_GE(4 * plan.products(), plan.half_groups(0));

    EXPECT_EQ(plan.down_blocks, plan.hidden / kPanelRows * plan.segments);
    if (plan.segments > 1) {
      EXPECT_LE(plan.down_blocks, multiprocessors);
    }
    EXPECT_EQ(plan.down_tiles() * plan.segments * kTileK, plan.intermediate);
    EXPECT_EQ(plan.down_tiles() % kPanelDepth, 0);
    for (const int width : kFewTokensWidths) {
      EXPECT_LE(GateUpRing(width).shared_bytes(width), kSharedBytesMax);
      EXPECT_LE(DownRing(width).shared_bytes(width), kSharedBytesMax);
      EXPECT_EQ(GateUpRing(width).weight_slots % 2, 0);  // two warpgroups take turns
      EXPECT_GE(GateUpRing(width).weight_slots, 4);      // two in flight, two being read
      EXPECT_GE(DownRing(width).weight_slots, 4);
      // A product of 64 rows may read beyond its piece, but not beyond the ring.
      const int64_t beyond = (plan.depth - 1) * plan.half_groups(0) * int64_t{kGroupBytes} +
                             plan.products() * int64_t{kPanelTileBytes} - kPieceBytesMax;
      EXPECT_LE(beyond, GateUpRing(width).activation_slots *
                            GateUpRing(width).activation_slot_bytes(width));
    }
    EXPECT_GE(plan.gate_up_in_flight, 2);
    EXPECT_GE(plan.down_in_flight, 2);
  });
}

// The shares of the H200's 132 multiprocessors, and K in two segments where panels are few.
TEST(FewTokensPlan, TheSizesOfModels) {
  const struct {
    Size size;
    int groups, parts, gate_up_blocks, segments, down_blocks;
  } table[] = {
      {{576, 1536}, 8, 1, 24, 2, 18},      {{2048, 8192}, 8, 1, 128, 2, 64},
      {{2560, 6912}, 7, 1, 124, 2, 80},    {{3584, 18944}, 9, 2, 132, 2, 112},
      {{4096, 11008}, 11, 1, 126, 2, 128}, {{4096, 14336}, 14, 1, 128, 2, 128},
      {{5120, 13824}, 14, 1, 124, 1, 80},  {{8192, 28672}, 14, 2, 128, 1, 128},
  };
  for (const auto& row : table) {
    const FewTokensPlan plan = PlanFewTokens(kGated, row.size.hidden, row.size.intermediate, 132);
    SCOPED_TRACE(::testing::Message() << row.size.hidden << "/" << row.size.intermediate);
    EXPECT_EQ(WhyNoFewTokensPlan(DType::kBF16, row.size.hidden, row.size.intermediate), "");
    EXPECT_EQ(plan.groups, row.groups);
    EXPECT_EQ(plan.parts_per_block, row.parts);
    EXPECT_EQ(plan.gate_up_blocks, row.gate_up_blocks);
    EXPECT_EQ(plan.segments, row.segments);
    EXPECT_EQ(plan.down_blocks, row.down_blocks);
  }
  // Without a gate half as many groups have the columns.
  const FewTokensPlan dense = PlanFewTokens(kDense, 4096, 16384, 132);
  EXPECT_EQ(dense.groups, 8);
  EXPECT_EQ(dense.gate_up_blocks, 128);
}

// A block with full products, where the ring has room for all of its weights.
TEST(FewTokensPlan, AShareThatFitsTheRingIsNoSmallerThanFullProducts) {
  ForEveryPlan([](const FewTokensPlan& plan, int) {
    const int pieces = 2 * static_cast<int>((plan.gate_up_tiles() + plan.depth - 1) / plan.depth);
    if (plan.groups * plan.parts_per_block > 8) return;
    if (plan.hidden <= 640) {
      EXPECT_EQ(plan.groups, 8);
      for (const int width : kFewTokensWidths) {
        EXPECT_LE(pieces, GateUpRing(width).weight_slots);
      }
    }
  });
  EXPECT_EQ(PlanFewTokens(kGated, 640, 2560, 132).groups, 8);
  EXPECT_EQ(PlanFewTokens(kGated, 704, 2560, 132).groups, 3);
}

// Who takes a call on the H200, in blocks of how many tokens; 0: the kernels for many.
TEST(FewTokensPlan, TokensAreCutAmongAsManyBlocksAsTheGpuHasRoomFor) {
  const struct {
    Size size;
    int64_t tokens;
    int gate_up, down;
  } table[] = {
      {{576, 1536}, 1, 8, 8},       {{576, 1536}, 16, 16, 16},      {{576, 1536}, 64, 64, 64},
      {{576, 1536}, 65, 64, 64},                                  // 2 x 24 and 2 x 18 blocks
      {{576, 1536}, 128, 64, 64},   {{576, 1536}, 192, 64, 64},   // 3 x 24 and 3 x 18
      {{576, 1536}, 193, 64, 128},                                // 4 x 24 leave room for 2 x 18
      {{576, 1536}, 256, 64, 128},  {{576, 1536}, 320, 64, 128},  // 5 x 24, and down has to wait
      {{576, 1536}, 321, 128, 128},                               // 3 x 24
      {{576, 1536}, 640, 128, 128}, {{576, 1536}, 641, 0, 128},   // 7 x 18
      {{576, 1536}, 896, 0, 128},   {{576, 1536}, 897, 0, 0},       {{2048, 8192}, 128, 128, 128},
      {{2048, 8192}, 256, 0, 128},  // 2 x 64 of down
      {{2048, 8192}, 257, 0, 0},    {{4096, 14336}, 64, 64, 64},    {{4096, 14336}, 128, 128, 128},
      {{4096, 14336}, 129, 0, 0},   {{8192, 28672}, 128, 128, 128}, {{8192, 28672}, 129, 0, 0},
      {{16384, 256}, 128, 64, 128},  // more panels than multiprocessors
      {{16384, 256}, 129, 0, 0},     // down's kernel for many needs that of gate and up
  };
  for (const auto& row : table) {
    const FewTokensPlan plan = PlanFewTokens(kGated, row.size.hidden, row.size.intermediate, 132);
    const TokenWidths widths = CutTokens(plan, row.tokens);
    SCOPED_TRACE(::testing::Message() << row.size.hidden << "/" << row.size.intermediate << ", "
                                      << row.tokens << " tokens");
    EXPECT_EQ(widths.gate_up, row.gate_up);
    EXPECT_EQ(widths.down, row.down);
  }
}

// Blocks of tokens are all on the GPU at once; a block has a tile's tokens or a part that the ring
// can take out of it.
TEST(FewTokensPlan, BlocksOfTokensFitTheGpu) {
  ForEveryPlan([](const FewTokensPlan& plan, int multiprocessors) {
    for (int64_t tokens = 1; tokens <= 3000; tokens += tokens < 400 ? 1 : 61) {
      const TokenWidths widths = CutTokens(plan, tokens);
      const auto check = [&](int width, int64_t blocks, const FewTokensRing& ring) {
        const int tile = TileWidth(tokens);
        const int64_t of_tokens = TokenBlocks(tokens, width);
        ASSERT_EQ(tile % width, 0);
        if (width < tile) {
          ASSERT_EQ(ring.activation_tiles, 1);
        }
        if (of_tokens > 1) {
          ASSERT_LE(of_tokens * blocks, multiprocessors);
        }
      };
      if (tokens <= kFewTokensMax) {
        ASSERT_NE(widths.gate_up, 0) << tokens;
        ASSERT_NE(widths.down, 0) << tokens;
      }
      if (widths.gate_up != 0) {
        ASSERT_NE(widths.down, 0) << tokens;
        check(widths.gate_up, plan.gate_up_blocks, GateUpRing(widths.gate_up));
      }
      if (widths.down != 0) check(widths.down, plan.down_blocks, DownRing(widths.down));
    }
  });
}

// On the H200: 66 clusters of two blocks.
TEST(ManyTokensPlan, TilesAreCutAsTheClustersAreDoneSoonest) {
  const struct {
    Size size;
    int64_t tokens;
    int groups, panels, parts;
  } table[] = {
      // 128 tiles of gate and up in two rounds; 16 tiles of down would leave most of the GPU idle.
      {{4096, 14336}, 256, 14, 2, 2},
      {{4096, 14336}, 512, 14, 4, 2},   // 16 tiles for each of two 256 tokens and segments
      {{4096, 14336}, 1024, 16, 4, 1},  // 7 rounds of 16 groups are 8 of 14
      {{4096, 14336}, 4096, 16, 4, 1},
      {{8192, 28672}, 256, 14, 2, 1},  // one segment: nothing to share
      {{8192, 28672}, 512, 16, 4, 1},
      {{576, 1536}, 129, 14, 2, 2},
  };
  for (const auto& row : table) {
    const FewTokensPlan plan = PlanFewTokens(kGated, row.size.hidden, row.size.intermediate, 132);
    SCOPED_TRACE(::testing::Message() << row.size.hidden << "/" << row.size.intermediate << ", "
                                      << row.tokens << " tokens");
    EXPECT_EQ(ManyTokensGroups(plan, row.tokens), row.groups);
    EXPECT_EQ(CutManyTokensDown(plan, row.tokens).panels, row.panels);
    EXPECT_EQ(CutManyTokensDown(plan, row.tokens).parts, row.parts);
  }
}

// There is room for the sums and the counts of every meeting.
TEST(ManyTokensPlan, SharedSegmentsHaveRoomToMeet) {
  for (const Size& size : {Size{64, 256}, Size{576, 1536}, Size{2048, 8192}, Size{4096, 14336}}) {
    for (const int multiprocessors : {66, 114, 132}) {
      const FewTokensPlan plan =
          PlanFewTokens(kGated, size.hidden, size.intermediate, multiprocessors);
      for (int64_t tokens = kFewTokensMax + 1; tokens < 20000; tokens += 127) {
        const ManyTokensDownCut cut = CutManyTokensDown(plan, tokens);
        ASSERT_TRUE(cut.panels == 2 || cut.panels == 4);
        ASSERT_LE(cut.parts, plan.segments);
        if (cut.parts == 1) continue;
        const int64_t blocks = (tokens + kClusterTokens - 1) / kClusterTokens * kClusterBlocks *
                               ((size.hidden / kPanelRows + cut.panels - 1) / cut.panels);
        EXPECT_LE(blocks * cut.parts, multiprocessors);
        EXPECT_LE(blocks * 8, kManyMeetings);  // 8 warps of a block
      }
    }
  }
}

TEST(FewTokensPlan, OtherSizesAreRefusedWithTheirReason) {
  EXPECT_EQ(WhyNoFewTokensPlan(DType::kF32, 4096, 14336), "takes FP16 and BF16, not FP32");
  EXPECT_EQ(WhyNoFewTokensPlan(DType::kF16, 100, 256), "takes a multiple of 64 as hidden, not 100");
  EXPECT_EQ(WhyNoFewTokensPlan(DType::kBF16, 64, 192),
            "takes a multiple of 128 as intermediate, not 192");
}

TEST(FewTokensPlan, WidthsOfTokens) {
  for (int64_t tokens = 1; tokens <= kFewTokensMax; ++tokens) {
    const int width = FewTokensWidth(tokens);
    EXPECT_GE(width, tokens);
    EXPECT_TRUE(width == 8 || width / 2 < tokens) << tokens;
  }
  EXPECT_EQ(FewTokensWidth(kFewTokensMax + 1), 0);
}

// Every token of every block of tokens has its place in the tiles of them all, wherever the blocks
// that compute it begin.
TEST(FewTokensPlan, PartsOfTilesLieWithinThem) {
  constexpr int64_t kTokens = 3 * kTokenBlock, kTiles = 3;
  for (const int width : {64, kTokenBlock}) {
    std::vector<bool> used(kTokens * kTiles * 8);
    for (int64_t token = 0; token < kTokens; ++token) {
      const int64_t first = token / width * width;
      for (int64_t chunk = 0; chunk < kTiles * 8; ++chunk) {
        const int64_t offset = FewTokensPlan::TokensOffset(first, kTiles) +
                               FewTokensPlan::ActivationOffset(kTokenBlock, token - first, chunk);
        ASSERT_TRUE(Take(used, offset)) << token << ", " << chunk;
        // As the norm and the kernels for many tokens have it.
        ASSERT_EQ(offset,
                  token / kTokenBlock * kTiles * kTokenBlock * kTileRowBytes +
                      FewTokensPlan::ActivationOffset(kTokenBlock, token % kTokenBlock, chunk));
      }
    }
  }
}

// A tile's rows are whole, and no two chunks share a bank group within 8 rows.
TEST(FewTokensPlan, ActivationsLieInSwizzledTiles) {
  for (const int width : kFewTokensWidths) {
    std::vector<bool> used(static_cast<size_t>(width) * 3 * 8);
    for (int64_t token = 0; token < width; ++token) {
      for (int64_t chunk = 0; chunk < 3 * 8; ++chunk) {
        const int64_t offset = FewTokensPlan::ActivationOffset(width, token, chunk);
        ASSERT_TRUE(Take(used, offset));
        EXPECT_EQ(offset / 16 % 8, (chunk % 8) ^ (token % 8));
        EXPECT_EQ(offset / (int64_t{width} * kTileRowBytes), chunk / 8);
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock
