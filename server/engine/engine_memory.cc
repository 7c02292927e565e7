// What the engine's memory comes to, as it is and with one more block.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda.h"
#include "server/engine/caller_lane.h"
#include "server/engine/engine_impl.h"
#include "server/engine/worker.h"
#include "server/observe/log.h"

namespace fuseblock {
namespace {

int64_t Signed(size_t bytes) { return static_cast<int64_t>(bytes); }

}  // namespace

int64_t Engine::Impl::DeviceBytesMax(Device device) const {
  if (device.type == DeviceType::kCpu) return 0;  // the host's limit holds
  if (options.device_bytes_max > 0) return options.device_bytes_max;
  const FuseblockCudaRuntime* cuda = CudaRuntime();
  size_t free = 0, total = 0;
  if (cuda == nullptr || cuda->memory_info(device.index, &free, &total) != 0) return 0;
  return UsableDeviceBytes(Signed(free), Signed(total));
}

std::vector<DeviceMemory> Engine::Impl::PlanMemory(const EngineBlock* more) const {
  std::vector<DeviceMemory> plan;
  for (size_t i = 0; i < devices.size(); ++i) {
    const DeviceState& state = *devices[i];
    LaneBytes more_bytes;
    if (more != nullptr && more->has[i]) {
      more_bytes = more->BytesNeeded(i, options.batch_tokens_max);
    }
    DeviceMemory memory;
    memory.device = state.device;
    memory.lanes = Signed(state.workers.size());
    memory.weights = held_weights->bytes(i);
    memory.device_bytes_max = state.bytes_max;
    LaneBytes bytes = NeededOn(i);  // also of lanes that are yet to grow to it
    for (const auto& worker : state.workers) {
      const LaneBytes has = worker->bytes();
      bytes = Larger(bytes, has);
      const GraphCount graphs = worker->lane().graphs();
      memory.graphs += graphs.bytes;
      memory.graph_count += graphs.count;
      // What its graphs work on lives on with them when the lane gets larger.
      const bool outgrows = graphs.count > 0 && more_bytes.captured > has.captured;
      if (outgrows) memory.graphs += Signed(has.captured);
    }
    bytes = Larger(bytes, more_bytes);
    memory.workspace = Signed(bytes.workspace);
    memory.staging_in = Signed(bytes.inputs);
    if (!state.workers.empty()) {
      memory.staging_in += Signed(state.workers.front()->lane().host_bytes());
    }
    memory.staging_out = LaneWorker::kSlabs * Signed(bytes.outputs);
    if (state.device.type != DeviceType::kCpu) {
      memory.tensors = Signed(bytes.inputs + bytes.outputs);
      memory.captured = Signed(bytes.captured);
    }
    for (const auto& lane : state.caller_lanes) {
      memory.callers += Signed(lane->staging_bytes() + lane->workspace_bytes());
    }
    plan.push_back(memory);
  }
  return plan;
}

std::vector<DeviceMemory> Engine::Impl::Memory() const { return PlanMemory(nullptr); }

LaneBytes Engine::Impl::NeededOn(size_t device) const {
  std::lock_guard<std::mutex> lock(mutex);
  return devices[device]->needed;
}

void Engine::Impl::LogMemory() const {
  for (const DeviceMemory& memory : Memory()) {
    const std::string name = DeviceName(memory.device);
    if (memory.device.type != DeviceType::kCpu) {
      Log(LogLevel::kInfo, "device_memory", DescribeDeviceBytes(memory),
          {{"device", name},
           {"bytes", memory.DeviceBytes()},
           {"bytes_max", memory.device_bytes_max},
           {"graphs", memory.graph_count}});
    }
    Log(LogLevel::kInfo, "host_memory", DescribeHostBytes(memory),
        {{"device", name}, {"bytes", memory.HostBytes()}, {"bytes_max", options.host_bytes_max}});
  }
}

}  // namespace fuseblock
