// Which GPU holds which blocks, by memory. Pure logic over sizes; the CPU, which has every block,
// is not planned.
//
// What shares weights (a layer's blocks) is one unit and lies together. Each of its replicas goes
// to the device that then has the most room left, the largest units first, so that devices fill
// evenly; if that leaves no room for a unit, to the one that then has the least, which packs
// closer. Copies of weights and graphs, which only make blocks faster, are planned where that
// leaves room for all of them; else copies are done without, then graphs, too.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/engine/memory_plan.h"
#include "server/model/loader.h"

namespace fuseblock {

struct PlacementUnit {
  std::string name;          // "smollm2.layers.3"
  int64_t weight_bytes = 0;  // of a replica
  int64_t lane_bytes = 0;    // a lane's, for the largest batch; units on a device share a lane's
  int replicas = 1;          // 0: on every device
  int64_t copy_bytes = 0;    // of a replica, beside the weights: Block::CopyBytes
  int64_t graphs = 0;        // that a lane may capture of it
};

struct PlacementDevice {
  Device device;
  int64_t free_bytes = 0;
  int lanes = 1;
  int64_t lane_bytes = 0;  // that each of its lanes has already
  int64_t graphs_max = 0;  // that each of its lanes may yet capture
};

// At most, of the driver's memory for one graph of a block.
inline constexpr int64_t kGraphBytes = 128 << 10;

// A device's sum. Bytes, beside what it held before.
struct DevicePlan {
  Device device;
  int64_t weight_bytes = 0;
  int64_t copy_bytes = 0;
  int64_t lane_bytes = 0;   // of all lanes
  int64_t graph_bytes = 0;  // the same
  int64_t free_bytes = 0;   // that there were
  int units = 0;

  int64_t Sum() const { return weight_bytes + copy_bytes + lane_bytes + graph_bytes; }
};

struct Placement {
  std::vector<std::vector<Device>> devices_of;  // by unit, in the order of the devices
  std::vector<DevicePlan> devices;
  bool copies = false;  // whether they are planned, and so may be made
};

// RESOURCE_EXHAUSTED, with every device's sum, when a unit has nowhere to go; INVALID_ARGUMENT for
// more replicas than devices.
absl::StatusOr<Placement> Place(const std::vector<PlacementUnit>& units,
                                const std::vector<PlacementDevice>& devices);

// A plan with what it was made of.
struct PlacedUnits {
  std::vector<PlacementUnit> units;
  Placement placement;
};

// Its terms, and their names.
MemorySum PlannedSum(const DevicePlan& plan);
// "cuda:0: 12 units, weights 704643072 + copies 0 + lanes 25165824 + graphs 262144 = 730071040 of
// 84825604096 bytes"
std::string Describe(const DevicePlan& plan);
// "12 units: m.layers.0, m.layers.2, ...": what that one of the placement's devices has, the first
// `names_max` by name.
std::string DescribeUnits(const PlacedUnits& placed, size_t device, size_t names_max);

// What a lane of a GPU needs for a batch of that many tokens of such a block; at most, because the
// kernels that its weights will choose are not known yet.
int64_t LaneBytesAtMost(const BlockSpec& spec, int64_t tokens);

// With what graphs work on, of every size that the unit's blocks may make a lane grow to.
PlacementUnit UnitOf(const ModelUnit& unit, int replicas, int64_t batch_tokens_max,
                     const std::vector<PlacementDevice>& devices);

// One line for each device, and at debug level one for each unit.
void LogPlacement(const std::vector<PlacementUnit>& units, const Placement& placement);

// ModelOptions::places for that model's units: the GPUs that they were given among `devices`, in
// that order, and the CPU if it is among them.
std::map<std::string, std::vector<Device>> PlacesOf(std::string_view model,
                                                    const std::vector<PlacementUnit>& units,
                                                    const Placement& placement,
                                                    const std::vector<Device>& devices);

// The engine's healthy GPUs, with the memory that is left for it on them now. The device's error
// when one does not say. DEVICE_LOST when none is healthy and a lane of one hangs: what would be
// loaded onto that one might never come back.
absl::StatusOr<std::vector<PlacementDevice>> GpusNow(const Engine& engine, int64_t graphs_max);

}  // namespace fuseblock
