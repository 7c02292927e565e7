// Preparing a block: what its memory comes to, whether that may be, and then the lanes' memory and
// graphs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda.h"
#include "server/engine/engine_impl.h"
#include "server/engine/worker.h"
#include "server/observe/log.h"

namespace fuseblock {
namespace {

int64_t Signed(size_t bytes) { return static_cast<int64_t>(bytes); }

LaneBytes Larger(const LaneBytes& a, const LaneBytes& b) {
  return {std::max(a.inputs, b.inputs), std::max(a.outputs, b.outputs),
          std::max(a.workspace, b.workspace), std::max(a.captured, b.captured)};
}

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
    DeviceMemory memory;
    memory.device = state.device;
    memory.lanes = Signed(state.workers.size());
    memory.weights = (*held_weights)[i];
    memory.device_bytes_max = state.bytes_max;
    LaneBytes bytes;
    for (const auto& worker : state.workers) {
      bytes = Larger(bytes, worker->bytes());
      const GraphCount graphs = worker->lane().graphs();
      memory.graphs += graphs.bytes;
      memory.graph_count += graphs.count;
    }
    if (more != nullptr && more->has[i]) {
      bytes = Larger(bytes, more->BytesNeeded(i, options.batch_tokens_max));
    }
    memory.workspace = Signed(bytes.workspace);
    memory.staging_in = Signed(bytes.inputs);
    memory.staging_out = LaneWorker::kSlabs * Signed(bytes.outputs);
    if (state.device.type != DeviceType::kCpu) {
      memory.tensors = Signed(bytes.inputs + bytes.outputs);
      memory.captured = Signed(bytes.captured);
    }
    plan.push_back(memory);
  }
  return plan;
}

std::vector<DeviceMemory> Engine::Impl::Memory() const {
  std::lock_guard<std::mutex> lock(prepare_mutex);
  return PlanMemory(nullptr);
}

absl::Status Engine::Impl::Prepare(const ServedBlock& block, const Budget& budget) {
  // One at a time: each is measured against what the ones before it left.
  std::lock_guard<std::mutex> preparing(prepare_mutex);
  std::vector<const Block*> on_device;
  for (const auto& state : devices) {
    on_device.push_back(state->workers.empty() ? nullptr
                                               : state->workers.front()->lane().BlockOf(block));
  }
  const auto account = std::make_shared<BudgetAccount>(
      BudgetAccount{absl::StrCat("the budget of ", block.name), budget, {}});
  auto beside = std::make_shared<EngineBlock>(block, on_device, options.batch_tokens_max, account,
                                              metrics.Block(block.name), held_weights);
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(block.name, ": ", status.message()));
  };
  const std::vector<DeviceMemory> plan = PlanMemory(beside.get());
  if (absl::Status s = CheckMemory(plan, options.host_bytes_max); !s.ok()) return named(s);
  for (size_t i = 0; i < devices.size(); ++i) {
    beside->graphs.emplace_back(devices[i]->workers.size());
    if (!beside->has[i]) continue;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!healthy[i]) continue;
    }
    for (size_t lane = 0; lane < devices[i]->workers.size(); ++lane) {
      if (absl::Status s = PrepareLane(i, lane, *beside); !s.ok()) return named(s);
    }
    devices[i]->workers.front()->Measure(*beside, options.measure_max);
  }
  if (std::find(beside->has.begin(), beside->has.end(), true) == beside->has.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(block.name, ": is on none of the engine's devices"));
  }
  block.metrics = beside->metrics;
  block.engine = std::move(beside);
  return absl::OkStatus();
}

absl::Status Engine::Impl::PrepareLane(size_t device, size_t lane, EngineBlock& block) {
  LaneWorker& worker = *devices[device]->workers[lane];
  absl::Status status = worker.Reserve(block.BytesNeeded(device, options.batch_tokens_max));
  if (!status.ok()) return status;
  absl::StatusOr<std::shared_ptr<BlockGraphs>> graphs = worker.Capture(block);
  if (!graphs.ok()) return graphs.status();
  block.graphs[device][lane] = *std::move(graphs);
  return absl::OkStatus();
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
