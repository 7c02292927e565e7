#include "server/engine/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fuseblock {
namespace {

struct Term {
  const char* name;
  int64_t bytes;
};

std::string Sum(const DeviceMemory& memory, const std::vector<Term>& shared,
                const std::vector<Term>& of_a_lane, int64_t sum, absl::string_view where) {
  const auto text = [](const std::vector<Term>& terms) {
    return absl::StrJoin(terms, " + ", [](std::string* out, const Term& term) {
      absl::StrAppend(out, term.name, " ", term.bytes);
    });
  };
  return absl::StrCat(DeviceName(memory.device), ": ", text(shared), shared.empty() ? "" : " + ",
                      memory.lanes, memory.lanes == 1 ? " lane" : " lanes", " x (", text(of_a_lane),
                      ") = ", sum, " bytes ", where);
}

bool OnHost(const DeviceMemory& memory) { return memory.device.type == DeviceType::kCpu; }

}  // namespace

int64_t DeviceMemory::DeviceBytes() const {
  return weights + lanes * (tensors + workspace + captured) + graphs;
}

int64_t DeviceMemory::HostBytes() const {
  return lanes * (staging_in + staging_out) + callers + (OnHost(*this) ? DeviceBytes() : 0);
}

std::string DescribeDeviceBytes(const DeviceMemory& memory) {
  return Sum(memory, {{"weights", memory.weights}, {"graphs", memory.graphs}},
             {{"tensors", memory.tensors},
              {"workspace", memory.workspace},
              {"small batches", memory.captured}},
             memory.DeviceBytes(), "on the device");
}

std::string DescribeHostBytes(const DeviceMemory& memory) {
  const std::vector<Term> staging = {{"staging in", memory.staging_in},
                                     {"staging out", memory.staging_out}};
  if (!OnHost(memory)) return Sum(memory, {}, staging, memory.HostBytes(), "on the host, pinned");
  return Sum(memory, {{"weights", memory.weights}, {"callers' lanes", memory.callers}},
             {staging[0], staging[1], {"workspace", memory.workspace}}, memory.HostBytes(),
             "on the host");
}

absl::Status CheckMemory(const std::vector<DeviceMemory>& plan, int64_t host_bytes_max) {
  int64_t host_bytes = 0;
  for (const DeviceMemory& memory : plan) {
    host_bytes += memory.HostBytes();
    if (memory.device_bytes_max == 0 || memory.DeviceBytes() <= memory.device_bytes_max) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat(DescribeDeviceBytes(memory), ", of which ", memory.device_bytes_max,
                     " may be used: fewer or smaller models, engine.max_batch_tokens or "
                     "engine.lanes_per_device make it fit"));
  }
  if (host_bytes_max == 0 || host_bytes <= host_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(absl::StrJoin(plan, "; ",
                                 [](std::string* out, const DeviceMemory& memory) {
                                   out->append(DescribeHostBytes(memory));
                                 }),
                   "; together ", host_bytes, ", of which ", host_bytes_max, " may be used"));
}

int64_t UsableDeviceBytes(int64_t free_bytes, int64_t total_bytes) {
  const int64_t kept = std::max(int64_t{256} << 20, total_bytes / 64);
  return std::max<int64_t>(1, free_bytes - kept);
}

}  // namespace fuseblock
