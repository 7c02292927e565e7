// What the engine holds for one device, term by term, so that the sum can be shown and compared
// with what may be used before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/lane.h"

namespace fuseblock {

// Bytes. Terms of a lane are of one lane.
struct DeviceMemory {
  Device device;
  int64_t lanes = 0;
  // On the device; the CPU's is the host.
  int64_t weights = 0;  // of all blocks that are loaded
  int64_t tensors =
      0;  // a lane's inputs and outputs; none on the CPU, which computes in the staging
  int64_t workspace = 0;  // a lane's intermediates
  int64_t captured = 0;   // a lane's, for the small batches that run as graphs
  int64_t graphs = 0;     // of all lanes: what the driver took for them
  int64_t graph_count = 0;
  // On the host, pinned where the device is a GPU.
  int64_t staging_in = 0;   // where a lane gathers requests, and hands small ones to its GPU
  int64_t staging_out = 0;  // a lane's slabs, from which answers are sent
  int64_t callers = 0;      // of all lanes on which callers run short batches; the CPU's
  // What the device's terms may come to; 0: as much as there is.
  int64_t device_bytes_max = 0;

  int64_t DeviceBytes() const;
  // What is left of so many free bytes, within the limit.
  int64_t Left(int64_t free_bytes) const;
  int64_t HostBytes() const;  // with the device's terms if it is the CPU
};

// Terms that are added up in one place. Those of a lane count once for each.
struct MemorySum {
  struct Term {
    const char* name;
    int64_t bytes;
  };
  Device device;
  const char* where;  // "on the host, pinned"
  std::vector<Term> shared;
  int64_t lanes = 0;
  std::vector<Term> of_a_lane;
  int64_t bytes = 0;      // of all
  int64_t bytes_max = 0;  // 0: as much as there is
};
MemorySum DeviceSum(const DeviceMemory& memory);
MemorySum HostSum(const DeviceMemory& memory);  // with the device's terms if it is the CPU

// "weights 704643072 + graphs 0"
std::string DescribeTerms(const std::vector<MemorySum::Term>& terms);
// "cuda:0: weights 704643072 + 2 lanes x (tensors 1 + ...) + graphs 0 = 1234 bytes on the device"
std::string DescribeDeviceBytes(const DeviceMemory& memory);
std::string DescribeHostBytes(const DeviceMemory& memory);

// RESOURCE_EXHAUSTED, with the sum shown, when a device's terms exceed its limit, or all on the
// host `host_bytes_max` (0: none).
absl::Status CheckMemory(const std::vector<DeviceMemory>& plan, int64_t host_bytes_max);

// Of a device that has so much: what may be used, less what the driver and its libraries take for
// themselves while serving.
int64_t UsableDeviceBytes(int64_t free_bytes, int64_t total_bytes);

}  // namespace fuseblock
