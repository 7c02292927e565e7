#include "server/engine/placement.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/cuda.h"
#include "server/engine/buckets.h"
#include "server/engine/engine_block.h"
#include "server/engine/lane.h"
#include "server/engine/memory_plan.h"
#include "server/observe/log.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// What makes blocks faster and can be done without.
struct Extras {
  bool copies, graphs;
};

// A device as it fills.
struct Filling {
  PlacementDevice device;
  DevicePlan plan;
  int64_t lane_bytes;  // of one lane
  int64_t graphs = 0;  // the same

  int64_t LanesWith(const PlacementUnit& unit) const {
    const int64_t grown = std::max(lane_bytes, unit.lane_bytes) - device.lane_bytes;
    return grown * device.lanes;
  }
  DevicePlan With(const PlacementUnit& unit, Extras extras) const {
    DevicePlan with = plan;
    with.weight_bytes += unit.weight_bytes;
    with.copy_bytes += extras.copies ? unit.copy_bytes : 0;
    with.lane_bytes = LanesWith(unit);
    const int64_t planned = extras.graphs ? std::min(graphs + unit.graphs, device.graphs_max) : 0;
    with.graph_bytes = planned * kGraphBytes * device.lanes;
    ++with.units;
    return with;
  }
  // Negative: there is no room.
  int64_t LeftWith(const PlacementUnit& unit, Extras extras) const {
    return device.free_bytes - With(unit, extras).Sum();
  }
  void Add(const PlacementUnit& unit, Extras extras) {
    plan = With(unit, extras);
    lane_bytes = std::max(lane_bytes, unit.lane_bytes);
    graphs += unit.graphs;
  }
};

std::vector<Filling> Empty(const std::vector<PlacementDevice>& devices) {
  std::vector<Filling> filling;
  filling.reserve(devices.size());
  for (const PlacementDevice& device : devices) {
    DevicePlan plan;
    plan.device = device.device;
    plan.free_bytes = device.free_bytes;
    filling.push_back({device, plan, device.lane_bytes});
  }
  return filling;
}

int ReplicasOf(const PlacementUnit& unit, size_t devices) {
  return unit.replicas == 0 ? static_cast<int>(devices) : unit.replicas;
}

// By unit: whether each device has it. Nothing when some unit has nowhere to go, which is *failed.
using Holders = std::vector<std::vector<bool>>;
std::optional<Holders> Fill(const std::vector<PlacementUnit>& units, Extras extras, bool evenly,
                            std::vector<Filling>& devices, size_t* failed) {
  std::vector<size_t> order(units.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return units[a].weight_bytes > units[b].weight_bytes;
  });
  Holders holders(units.size(), std::vector<bool>(devices.size()));
  for (const size_t u : order) {
    for (int replica = 0; replica < ReplicasOf(units[u], devices.size()); ++replica) {
      std::optional<size_t> best;
      for (size_t d = 0; d < devices.size(); ++d) {
        const int64_t left = devices[d].LeftWith(units[u], extras);
        if (holders[u][d] || left < 0) continue;
        const int64_t best_left = best.has_value() ? devices[*best].LeftWith(units[u], extras) : 0;
        if (!best.has_value() || (evenly ? left > best_left : left < best_left)) best = d;
      }
      if (!best.has_value()) {
        *failed = u;
        return std::nullopt;
      }
      devices[*best].Add(units[u], extras);
      holders[u][*best] = true;
    }
  }
  return holders;
}

std::string DescribeAll(const std::vector<Filling>& devices) {
  return absl::StrJoin(devices, "; ", [](std::string* out, const Filling& device) {
    out->append(Describe(device.plan));
  });
}

std::string UnitsText(const DevicePlan& plan) {
  return absl::StrCat(plan.units, plan.units == 1 ? " unit" : " units");
}

int64_t Signed(size_t bytes) { return static_cast<int64_t>(bytes); }

int64_t FormsOf(const BlockSpec& spec) {
  const std::vector<BlockTensor> inputs = Block::Inputs(spec);
  int64_t forms = 0;
  for (int form = 0; form < kForms; ++form) forms += HasForm(inputs, form) ? 1 : 0;
  return forms;
}

}  // namespace

absl::StatusOr<Placement> Place(const std::vector<PlacementUnit>& units,
                                const std::vector<PlacementDevice>& devices) {
  for (const PlacementUnit& unit : units) {
    if (ReplicasOf(unit, devices.size()) <= Signed(devices.size())) continue;
    return absl::InvalidArgumentError(absl::StrCat(unit.name, ": expected at most ", devices.size(),
                                                   " replicas, one for each GPU, got ",
                                                   unit.replicas));
  }
  Placement placement;
  std::vector<Filling> filling;
  std::optional<Holders> holders;
  size_t failed = 0;
  constexpr Extras kAll{true, true}, kNoCopies{false, true}, kNone{false, false};
  for (const auto& [extras, evenly] : {std::pair(kAll, true),
                                       {kAll, false},
                                       {kNoCopies, true},
                                       {kNoCopies, false},
                                       {kNone, true},
                                       {kNone, false}}) {
    filling = Empty(devices);
    holders = Fill(units, extras, evenly, filling, &failed);
    placement.copies = extras.copies;
    if (holders.has_value()) break;
  }
  if (!holders.has_value()) {
    const PlacementUnit& unit = units[failed];
    return absl::ResourceExhaustedError(absl::StrCat(
        unit.name, ": no GPU has room for its weights, ", unit.weight_bytes,
        " bytes, and lanes of ", unit.lane_bytes,
        " bytes each, beside what is placed already: ", DescribeAll(filling),
        "; fewer layers or replicas, engine.max_batch_tokens or engine.lanes_per_device make it "
        "fit"));
  }
  for (const std::vector<bool>& has : *holders) {
    placement.devices_of.emplace_back();
    for (size_t d = 0; d < devices.size(); ++d) {
      if (has[d]) placement.devices_of.back().push_back(devices[d].device);
    }
  }
  for (const Filling& device : filling) placement.devices.push_back(device.plan);
  return placement;
}

MemorySum PlannedSum(const DevicePlan& plan) {
  return {plan.device,
          "on the device",
          {{"weights", plan.weight_bytes},
           {"copies", plan.copy_bytes},
           {"lanes", plan.lane_bytes},
           {"graphs", plan.graph_bytes}},
          0,
          {},
          plan.Sum(),
          plan.free_bytes};
}

std::string Describe(const DevicePlan& plan) {
  return absl::StrCat(DeviceName(plan.device), ": ", UnitsText(plan), ", ",
                      DescribeTerms(PlannedSum(plan).shared), " = ", plan.Sum(), " of ",
                      plan.free_bytes, " bytes");
}

// The count goes first: whoever cuts the text keeps it.
std::string DescribeUnits(const PlacedUnits& placed, size_t device, size_t names_max) {
  const DevicePlan& plan = placed.placement.devices[device];
  std::vector<std::string> names;
  for (size_t u = 0; u < placed.units.size() && names.size() < names_max; ++u) {
    const std::vector<Device>& devices = placed.placement.devices_of[u];
    const bool here = std::find(devices.begin(), devices.end(), plan.device) != devices.end();
    if (here) names.push_back(placed.units[u].name);
  }
  if (static_cast<size_t>(plan.units) > names.size()) names.push_back("...");
  return absl::StrCat(UnitsText(plan), names.empty() ? "" : ": ", absl::StrJoin(names, ", "));
}

int64_t LaneBytesAtMost(const BlockSpec& spec, int64_t tokens) {
  // Inputs and outputs in their widest dtype; between them, for a feed-forward, gate, up and their
  // product, and for a path the residual stream, the norm's result and the feed-forward's: in FP32
  // at the widest.
  int64_t bytes = 0;
  const auto add = [&](int64_t columns, int64_t size) {
    bytes += Signed(AlignTensor(static_cast<size_t>(tokens * columns * size)));
  };
  for (const std::vector<BlockTensor>& tensors : {Block::Inputs(spec), Block::Outputs(spec)}) {
    for (const BlockTensor& tensor : tensors) {
      int size = 0;
      for (const DType dtype : tensor.dtypes) size = std::max(size, SizeOf(dtype));
      add(std::max<int64_t>(tensor.columns, 1), size);
    }
  }
  const int wide = SizeOf(DType::kF32);
  if (spec.intermediate > 0) {
    for (int i = 0; i < 3; ++i) add(spec.intermediate, wide);
  }
  if (spec.kind == BlockKind::kFfnPath) {
    for (int i = 0; i < 3; ++i) add(spec.hidden, wide);
  }
  return bytes;
}

PlacementUnit UnitOf(const ModelUnit& unit, int replicas, int64_t batch_tokens_max,
                     const std::vector<PlacementDevice>& devices) {
  PlacementUnit out;
  out.name = unit.name;
  out.weight_bytes = unit.weight_bytes;
  out.replicas = replicas;
  const int buckets = BucketsUpTo(batch_tokens_max);
  int64_t captured = 0;
  for (const BlockSpec& spec : unit.blocks) {
    out.lane_bytes = std::max(out.lane_bytes, LaneBytesAtMost(spec, batch_tokens_max));
    captured += LaneBytesAtMost(spec, kTokenBuckets[buckets - 1]);
    out.graphs += buckets * FormsOf(spec);
    for (const PlacementDevice& device : devices) {
      out.copy_bytes = std::max(out.copy_bytes, Block::CopyBytes(spec, device.device));
    }
  }
  out.lane_bytes += captured;
  return out;
}

void LogPlacement(const std::vector<PlacementUnit>& units, const Placement& placement) {
  for (const DevicePlan& plan : placement.devices) {
    Log(LogLevel::kInfo, "placed", Describe(plan),
        {{"device", DeviceName(plan.device)},
         {"units", plan.units},
         {"weight_bytes", plan.weight_bytes},
         {"copy_bytes", plan.copy_bytes},
         {"lane_bytes", plan.lane_bytes},
         {"graph_bytes", plan.graph_bytes},
         {"free_bytes", plan.free_bytes}});
  }
  for (size_t u = 0; u < units.size(); ++u) {
    const auto name = [](std::string* out, Device device) { out->append(DeviceName(device)); };
    Log(LogLevel::kDebug, "placed_unit",
        absl::StrCat(units[u].name, " on ", absl::StrJoin(placement.devices_of[u], ", ", name)),
        {{"unit", units[u].name}, {"weight_bytes", units[u].weight_bytes}});
  }
}

std::map<std::string, std::vector<Device>> PlacesOf(std::string_view model,
                                                    const std::vector<PlacementUnit>& units,
                                                    const Placement& placement,
                                                    const std::vector<Device>& devices) {
  std::map<std::string, std::vector<Device>> places;
  for (size_t u = 0; u < units.size(); ++u) {
    if (!units[u].name.starts_with(std::string(model) + ".")) continue;
    const std::vector<Device>& gpus = placement.devices_of[u];
    std::vector<Device>& place = places[units[u].name];
    for (const Device device : devices) {
      const bool has = device.type == DeviceType::kCpu ||
                       std::find(gpus.begin(), gpus.end(), device) != gpus.end();
      if (has) place.push_back(device);
    }
  }
  return places;
}

absl::StatusOr<std::vector<PlacementDevice>> GpusNow(const Engine& engine, int64_t graphs_max) {
  const std::vector<DeviceStatus> statuses = engine.Devices();
  std::vector<PlacementDevice> gpus;
  for (const DeviceMemory& memory : engine.Memory()) {
    const Device device = memory.device;
    if (device.type != DeviceType::kCuda) continue;
    const auto status_of =
        std::find_if(statuses.begin(), statuses.end(),
                     [&](const DeviceStatus& known) { return known.device == device; });
    if (status_of == statuses.end() || status_of->health != DeviceHealth::kHealthy) continue;
    size_t free = 0, total = 0;
    const FuseblockCudaRuntime* cuda = CudaRuntime();
    if (cuda == nullptr) return absl::UnavailableError(CudaUnavailableReason());
    absl::Status status =
        CudaStatus("asking for the free memory", cuda->memory_info(device.index, &free, &total));
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(DeviceName(device), ": ", status.message()));
    }
    gpus.push_back({device, memory.Left(UsableDeviceBytes(Signed(free), Signed(total))),
                    static_cast<int>(memory.lanes),
                    memory.tensors + memory.workspace + memory.captured,
                    std::max<int64_t>(graphs_max - memory.graph_count / memory.lanes, 0)});
  }
  for (const DeviceStatus& status : statuses) {
    if (!gpus.empty() || status.stuck_lanes == 0) continue;
    return MakeError(Reason::kDeviceLost,
                     absl::StrCat(DeviceName(status.device), ": ", status.reason),
                     absl::Seconds(1));
  }
  return gpus;
}

}  // namespace fuseblock
