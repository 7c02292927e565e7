#include "server/engine/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fuseblock {
namespace {

std::string Describe(const MemorySum& sum) {
  return absl::StrCat(DeviceName(sum.device), ": ", DescribeTerms(sum.shared),
                      sum.shared.empty() ? "" : " + ", sum.lanes,
                      sum.lanes == 1 ? " lane" : " lanes", " x (", DescribeTerms(sum.of_a_lane),
                      ") = ", sum.bytes, " bytes ", sum.where);
}

bool OnHost(const DeviceMemory& memory) { return memory.device.type == DeviceType::kCpu; }

}  // namespace

int64_t DeviceMemory::DeviceBytes() const {
  return weights + lanes * (tensors + workspace + captured) + graphs;
}

int64_t DeviceMemory::Left(int64_t free_bytes) const {
  if (device_bytes_max == 0) return free_bytes;
  return std::min(free_bytes, device_bytes_max - DeviceBytes());
}

int64_t DeviceMemory::HostBytes() const {
  return lanes * (staging_in + staging_out) + callers + (OnHost(*this) ? DeviceBytes() : 0);
}

MemorySum DeviceSum(const DeviceMemory& memory) {
  return {memory.device,
          "on the device",
          {{"weights", memory.weights}, {"graphs", memory.graphs}},
          memory.lanes,
          {{"tensors", memory.tensors},
           {"workspace", memory.workspace},
           {"small batches", memory.captured}},
          memory.DeviceBytes(),
          memory.device_bytes_max};
}

MemorySum HostSum(const DeviceMemory& memory) {
  MemorySum sum = {memory.device,
                   "on the host, pinned",
                   {},
                   memory.lanes,
                   {{"staging in", memory.staging_in}, {"staging out", memory.staging_out}},
                   memory.HostBytes(),
                   0};
  if (!OnHost(memory)) return sum;
  sum.where = "on the host";
  sum.shared = {{"weights", memory.weights}, {"callers' lanes", memory.callers}};
  sum.of_a_lane.push_back({"workspace", memory.workspace});
  return sum;
}

std::string DescribeTerms(const std::vector<MemorySum::Term>& terms) {
  return absl::StrJoin(terms, " + ", [](std::string* out, const MemorySum::Term& term) {
    absl::StrAppend(out, term.name, " ", term.bytes);
  });
}

std::string DescribeDeviceBytes(const DeviceMemory& memory) { return Describe(DeviceSum(memory)); }

std::string DescribeHostBytes(const DeviceMemory& memory) { return Describe(HostSum(memory)); }

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
