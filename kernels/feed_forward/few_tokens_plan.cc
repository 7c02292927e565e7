// The sizes' way to a plan; see the header.
#include "kernels/feed_forward/few_tokens_plan.h"

#include <algorithm>

namespace fuseblock {
namespace {

constexpr int kGroupsMax = 16;  // of a part: two products of 64 rows for each of two warpgroups
constexpr int kGroupsFull = kGroupsMax / 2;  // one product for each
// Of weights that the ring of any width has room for.
constexpr int64_t kRingBytes = int64_t{GateUpRing(kFewTokensMax).weight_slots} * kPieceBytesMax;
// What all blocks together keep in flight: 64 KiB each of 128. Fewer blocks have more each.
constexpr int64_t kBytesInFlight = 8 << 20;

int32_t PiecesInFlight(int64_t blocks, int64_t piece_bytes) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(CeilDiv(kBytesInFlight, blocks * piece_bytes), 2, 16));
}

}  // namespace

std::string WhyNoFewTokensPlan(DType dtype, int64_t hidden, int64_t intermediate) {
  if (dtype != DType::kF16 && dtype != DType::kBF16) {
    return "takes FP16 and BF16, not " + std::string(Name(dtype));
  }
  if (hidden % kPanelRows != 0) {
    return "takes a multiple of " + std::to_string(kPanelRows) + " as hidden, not " +
           std::to_string(hidden);
  }
  constexpr int kWholePieces = kTileK * kPanelDepth;
  if (intermediate % kWholePieces != 0) {
    return "takes a multiple of " + std::to_string(kWholePieces) + " as intermediate, not " +
           std::to_string(intermediate);
  }
  return "";
}

FewTokensPlan PlanFewTokens(FeedForwardForm form, int64_t hidden, int64_t intermediate,
                            int multiprocessors) {
  FewTokensPlan plan;
  plan.hidden = hidden;
  plan.intermediate = intermediate;
  plan.multiprocessors = multiprocessors;

  // As even a share of the groups for every multiprocessor as whole groups give, one for each
  // warpgroup at least. Where the share of a block whose products are full fits the ring, not less
  // than that: all of it comes while the block waits for the kernel before, and fewer blocks leave
  // room for those of other tokens and of the kernels beside.
  plan.matrices = EntryOf(form).gated ? 2 : 1;
  plan.all_groups = static_cast<int32_t>(intermediate / plan.group_columns());
  const bool fits = plan.gate_up_tiles() * kGroupsFull * kGroupBytes <= kRingBytes;
  const int64_t share =
      std::max<int64_t>(fits ? kGroupsFull : 2, CeilDiv(plan.all_groups, multiprocessors));
  plan.parts_per_block = static_cast<int32_t>(CeilDiv(share, kGroupsMax));
  plan.groups = static_cast<int32_t>(CeilDiv(share, plan.parts_per_block));
  plan.gate_up_blocks =
      static_cast<int32_t>(CeilDiv(plan.all_groups, int64_t{plan.groups} * plan.parts_per_block));
  plan.depth = std::max(1, kPieceBytesMax / (plan.half_groups(0) * kGroupBytes));
  plan.depth = static_cast<int32_t>(std::min<int64_t>(plan.depth, plan.gate_up_tiles()));
  plan.gate_up_in_flight =
      PiecesInFlight(plan.gate_up_blocks, int64_t{plan.half_groups(0)} * kGroupBytes * plan.depth);

  // A panel is the share of one block, or, where that leaves half of the GPU idle, of a cluster of
  // two. (More than two would not all find room: a cluster lies within one part of the GPU.)
  const int64_t panels = hidden / kPanelRows;
  const bool divides = intermediate % (kSegmentsMax * kTileK * kPanelDepth) == 0;
  plan.segments = divides && panels * kSegmentsMax <= multiprocessors ? kSegmentsMax : 1;
  plan.down_blocks = static_cast<int32_t>(panels * plan.segments);
  plan.down_in_flight = PiecesInFlight(plan.down_blocks, int64_t{kPanelDepth} * kPanelTileBytes);
  return plan;
}

}  // namespace fuseblock
