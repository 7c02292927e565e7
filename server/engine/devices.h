// Which devices there are, which of them the engine uses, and which one answers a block.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"

namespace fuseblock {

// The configuration's `devices`: "auto" (all CUDA devices, then the CPU), "cpu", or names in order
// of preference ("cuda:1,cuda:0"). With FallbackPolicy::kCpu the CPU is put last if it is not
// named. INVALID_ARGUMENT for a name that is none or comes twice; NOT_FOUND, with what there is and
// why, for a CUDA device that is not there.
absl::StatusOr<std::vector<Device>> ResolveDevices(std::string_view text, FallbackPolicy fallback);

int GpuCount(const std::vector<Device>& devices);

// The devices that answer a block: all healthy ones of the preferred one's type; when there is none
// of these left, the CPU, if the policy allows it. They never answer side by side, because their
// bits differ.
struct Serving {
  bool any = false;       // false: the block cannot be answered
  bool fallback = false;  // answered by another type than the preferred
  DeviceType type = DeviceType::kCpu;
};
// `has[i]`: devices[i] holds the block. `healthy[i]`: it takes work.
Serving WhoServes(const std::vector<Device>& devices, const std::vector<bool>& has,
                  const std::vector<bool>& healthy, FallbackPolicy fallback);

}  // namespace fuseblock
