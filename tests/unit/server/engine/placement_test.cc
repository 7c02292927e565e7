#include "server/engine/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "server/engine/buckets.h"

namespace fuseblock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Device kCuda0{DeviceType::kCuda, 0};
const Device kCuda1{DeviceType::kCuda, 1};
const Device kCuda2{DeviceType::kCuda, 2};

std::vector<PlacementUnit> Layers(int count, int64_t weight_bytes, int64_t lane_bytes,
                                  int replicas = 1) {
  std::vector<PlacementUnit> units;
  for (int i = 0; i < count; ++i) {
    units.push_back({absl::StrCat("m.layers.", i), weight_bytes, lane_bytes, replicas});
  }
  return units;
}

// Units by device.
std::vector<int> Counts(const Placement& placement) {
  std::vector<int> counts;
  for (const DevicePlan& plan : placement.devices) counts.push_back(plan.units);
  return counts;
}

TEST(PlacementTest, OneGpuHoldsEverything) {
  const auto placement = Place(Layers(4, 100, 10), {{kCuda0, 420, 2, 0}});
  ASSERT_TRUE(placement.ok()) << placement.status();
  for (const auto& devices : placement->devices_of) EXPECT_THAT(devices, ElementsAre(kCuda0));
  const DevicePlan& plan = placement->devices[0];
  EXPECT_EQ(plan.weight_bytes, 400);
  EXPECT_EQ(plan.lane_bytes, 20) << "two lanes, each for the largest batch of any";
  EXPECT_EQ(Describe(plan),
            "cuda:0: 4 units, weights 400 + copies 0 + lanes 20 + graphs 0 = 420 of 420 bytes");
}

// The count is first, and so is never what a page that cuts long texts leaves out.
TEST(PlacementTest, ADevicesUnitsAreCountedAndTheFirstNamed) {
  PlacedUnits placed{Layers(5, 100, 0), {}};
  placed.placement = *Place(placed.units, {{kCuda0, 1000}, {kCuda1, 1000}, {kCuda2, 50}});
  EXPECT_EQ(DescribeUnits(placed, 0, 2), "3 units: m.layers.0, m.layers.2, ...");
  EXPECT_EQ(DescribeUnits(placed, 0, 3), "3 units: m.layers.0, m.layers.2, m.layers.4");
  EXPECT_EQ(DescribeUnits(placed, 1, 12), "2 units: m.layers.1, m.layers.3");
  EXPECT_EQ(DescribeUnits(placed, 2, 12), "0 units");
  placed.units = Layers(1, 100, 0);
  placed.placement = *Place(placed.units, {{kCuda0, 1000}});
  EXPECT_EQ(DescribeUnits(placed, 0, 12), "1 unit: m.layers.0");
}

TEST(PlacementTest, GpusFillEvenlyByMemory) {
  struct Row {
    std::vector<PlacementUnit> units;
    std::vector<PlacementDevice> devices;
    std::vector<int> counts;
  };
  const Row rows[] = {
      {Layers(4, 100, 0), {{kCuda0, 1000}, {kCuda1, 1000}}, {2, 2}},
      {Layers(5, 100, 0), {{kCuda0, 1000}, {kCuda1, 1000}}, {3, 2}},
      // Twice the room: what is left is evened out.
      {Layers(6, 100, 0), {{kCuda0, 400}, {kCuda1, 800}}, {1, 5}},
      // Lanes that are there already cost nothing.
      {Layers(1, 100, 50), {{kCuda0, 120}, {kCuda1, 110, 1, 50}}, {0, 1}},
      {Layers(3, 100, 0, 2), {{kCuda0, 1000}, {kCuda1, 1000}, {kCuda2, 1000}}, {2, 2, 2}},
      {Layers(3, 100, 0, 0), {{kCuda0, 1000}, {kCuda1, 1000}, {kCuda2, 1000}}, {3, 3, 3}},
      {{}, {{kCuda0, 1000}}, {0}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(&row - rows);
    const auto placement = Place(row.units, row.devices);
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_EQ(Counts(*placement), row.counts);
  }
}

TEST(PlacementTest, ReplicasLieOnDevicesOfTheirOwn) {
  std::vector<PlacementUnit> units = Layers(3, 100, 0);
  units[1].replicas = 2;
  const auto placement = Place(units, {{kCuda0, 1000}, {kCuda1, 1000}});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_THAT(placement->devices_of[1], ElementsAre(kCuda0, kCuda1));
  EXPECT_EQ(placement->devices_of[0].size() + placement->devices_of[2].size(), 2u);
  const auto too_many = Place(Layers(1, 1, 0, 3), {{kCuda0, 10}, {kCuda1, 10}});
  EXPECT_TRUE(absl::IsInvalidArgument(too_many.status()));
  EXPECT_EQ(too_many.status().message(),
            "m.layers.0: expected at most 2 replicas, one for each GPU, got 3");
}

// Filled evenly the large one would find no room; packed closely it does.
TEST(PlacementTest, PacksCloserWhenEvenlyDoesNotDo) {
  const std::vector<PlacementUnit> units = {{"a", 70, 0, 1}, {"b", 50, 0, 1}, {"c", 50, 0, 1}};
  const auto placement = Place(units, {{kCuda0, 100}, {kCuda1, 70}});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_THAT(placement->devices_of[0], ElementsAre(kCuda1));
  EXPECT_EQ(Counts(*placement), (std::vector<int>{2, 1}));
}

TEST(PlacementTest, WhatDoesNotFitIsRefusedWithTheSums) {
  const auto placement = Place(Layers(5, 100, 10), {{kCuda0, 240, 2, 0}, {kCuda1, 230, 2, 0}});
  ASSERT_TRUE(absl::IsResourceExhausted(placement.status())) << placement.status();
  const std::string message(placement.status().message());
  EXPECT_THAT(message, HasSubstr("m.layers.4: no GPU has room for its weights, 100 bytes, and "
                                 "lanes of 10 bytes each"));
  EXPECT_THAT(
      message,
      HasSubstr(
          "cuda:0: 2 units, weights 200 + copies 0 + lanes 20 + graphs 0 = 220 of 240 bytes"));
  EXPECT_THAT(
      message,
      HasSubstr(
          "cuda:1: 2 units, weights 200 + copies 0 + lanes 20 + graphs 0 = 220 of 230 bytes"));
}

TEST(PlacementTest, CopiesArePlannedWhereAllOfThemFit) {
  std::vector<PlacementUnit> units = Layers(4, 100, 0);
  for (PlacementUnit& unit : units) unit.copy_bytes = 50;
  const auto with = Place(units, {{kCuda0, 300}, {kCuda1, 300}});
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_TRUE(with->copies);
  EXPECT_EQ(with->devices[0].copy_bytes, 100);
  EXPECT_EQ(with->devices[0].Sum(), 300);
  const auto without = Place(units, {{kCuda0, 300}, {kCuda1, 299}});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(without->copies);
  EXPECT_EQ(without->devices[0].copy_bytes + without->devices[1].copy_bytes, 0);
  EXPECT_FALSE(Place(units, {{kCuda0, 399}}).ok());
}

TEST(PlacementTest, GraphsTakeRoomToo) {
  std::vector<PlacementUnit> units = Layers(3, 100, 0);
  for (PlacementUnit& unit : units) unit.graphs = 16;
  // Two lanes, of which each captures no more than that.
  const int64_t room = 300 + 2 * 40 * kGraphBytes;
  const auto placement = Place(units, {{kCuda0, room, 2, 0, 40}});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(placement->devices[0].graph_bytes, 2 * 40 * kGraphBytes);
  const auto without = Place(units, {{kCuda0, room - 1, 2, 0, 40}});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->devices[0].graph_bytes, 0) << "blocks are launched directly";
  EXPECT_FALSE(Place(units, {{kCuda0, 299, 2, 0, 40}}).ok());
}

// A unit is planned with its lanes' memory for large batches and for those that run as graphs, and
// with a graph for each form of its inputs and each bucket.
TEST(PlacementTest, AUnitIsWhatItsBlocksNeed) {
  ModelUnit layer{"m.layers.0", {}, 1234};
  for (const BlockKind kind : {BlockKind::kMlp, BlockKind::kFfnPath}) {
    BlockSpec spec;
    spec.kind = kind;
    spec.dtype = DType::kBF16;
    spec.hidden = 64;
    spec.intermediate = 128;
    layer.blocks.push_back(spec);
  }
  const PlacementUnit unit = UnitOf(layer, 2, 1000, {});
  EXPECT_EQ(unit.name, "m.layers.0");
  EXPECT_EQ(unit.weight_bytes, 1234);
  EXPECT_EQ(unit.replicas, 2);
  EXPECT_EQ(unit.lane_bytes, LaneBytesAtMost(layer.blocks[1], 1000) +
                                 LaneBytesAtMost(layer.blocks[0], kBucketTokensMax) +
                                 LaneBytesAtMost(layer.blocks[1], kBucketTokensMax));
  EXPECT_EQ(unit.graphs, kTokenBucketCount * (1 + 2)) << "with and without a residual";
  EXPECT_EQ(unit.copy_bytes, 0);
}

// Whatever the sizes: nothing is placed where it has no room, every unit has its replicas, and what
// is refused really had no room left anywhere.
TEST(PlacementTest, RandomSizes) {
  int placed = 0;
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<PlacementDevice> devices;
    for (int d = 0; d < 1 + static_cast<int>(random() % 4); ++d) {
      devices.push_back({{DeviceType::kCuda, d},
                         static_cast<int64_t>(200 + random() % 800),
                         1 + static_cast<int>(random() % 3),
                         static_cast<int64_t>(random() % 2 * 10)});
    }
    std::vector<PlacementUnit> units;
    for (int u = 0; u < static_cast<int>(random() % 12); ++u) {
      units.push_back({absl::StrCat("u", u), static_cast<int64_t>(random() % 200),
                       static_cast<int64_t>(random() % 40),
                       static_cast<int>(random() % (devices.size() + 1))});
    }
    const auto placement = Place(units, devices);
    if (!placement.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(placement.status())) << placement.status();
      continue;
    }
    ++placed;
    for (size_t u = 0; u < units.size(); ++u) {
      const size_t wanted =
          units[u].replicas == 0 ? devices.size() : static_cast<size_t>(units[u].replicas);
      EXPECT_EQ(placement->devices_of[u].size(), wanted);
    }
    for (size_t d = 0; d < devices.size(); ++d) {
      int64_t weights = 0, lane = devices[d].lane_bytes;
      for (size_t u = 0; u < units.size(); ++u) {
        const auto& on = placement->devices_of[u];
        if (std::count(on.begin(), on.end(), devices[d].device) == 0) continue;
        weights += units[u].weight_bytes;
        lane = std::max(lane, units[u].lane_bytes);
      }
      const int64_t lanes = (lane - devices[d].lane_bytes) * devices[d].lanes;
      EXPECT_EQ(placement->devices[d].weight_bytes, weights);
      EXPECT_EQ(placement->devices[d].lane_bytes, lanes);
      EXPECT_LE(weights + lanes, devices[d].free_bytes);
    }
  }
  EXPECT_GT(placed, 1000);
}

TEST(PlacementTest, AModelsPlacesKeepTheOrderAndTheCpu) {
  const std::vector<PlacementUnit> units = {{"m.layers.0", 1, 0, 2}, {"mm.layers.0", 1, 0, 1}};
  const auto placement = Place(units, {{kCuda1, 10}, {kCuda0, 10}});
  ASSERT_TRUE(placement.ok()) << placement.status();
  const auto places = PlacesOf("m", units, *placement, {kCuda1, kCuda0, Device{}});
  ASSERT_EQ(places.size(), 1u);
  EXPECT_THAT(places.at("m.layers.0"), ElementsAre(kCuda1, kCuda0, Device{}));
}

// What a real block of that spec needs is never more than what is planned for it.
TEST(PlacementTest, LanesArePlannedForTheMost) {
  const std::vector<float> values(64 * 48, 0.5f);
  BlockWeights weights;
  weights.norm = ConstTensorView(values.data(), DType::kF32, {48});
  weights.gate = ConstTensorView(values.data(), DType::kF32, {64, 48});
  weights.up = weights.gate;
  weights.down = ConstTensorView(values.data(), DType::kF32, {48, 64});
  for (const BlockKind kind : {BlockKind::kNormResidual, BlockKind::kMlp, BlockKind::kFfnPath}) {
    for (const Rounding rounding : {Rounding::kFused, Rounding::kHf}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        BlockSpec spec;
        spec.kind = kind;
        spec.dtype = dtype;
        spec.hidden = 48;
        spec.intermediate = kind == BlockKind::kNormResidual ? 0 : 64;
        spec.rounding = rounding;
        const auto block = Block::Create(spec, weights, Device{});
        ASSERT_TRUE(block.ok()) << block.status();
        constexpr int64_t kTokens = 100;
        int64_t tensors = 0;
        for (const auto& list : {Block::Inputs(spec), Block::Outputs(spec)}) {
          for (const BlockTensor& tensor : list) {
            tensors += kTokens * tensor.columns * SizeOf(tensor.dtypes[0]);
          }
        }
        const auto workspace = static_cast<int64_t>((*block)->WorkspaceBytes(kTokens));
        EXPECT_GE(LaneBytesAtMost(spec, kTokens), tensors + workspace) << Name(kind);
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock
