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
    LaneBytes bytes = NeededOn(i);  // also of lanes that are yet to grow to it
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
    if (absl::Status s = PrepareOn(i, *beside); !s.ok()) return named(s);
  }
  if (std::find(beside->has.begin(), beside->has.end(), true) == beside->has.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(block.name, ": is on none of the engine's devices"));
  }
  block.metrics = beside->metrics;
  block.engine = std::move(beside);
  return absl::OkStatus();
}

absl::Status Engine::Impl::PrepareOn(size_t device, EngineBlock& block) {
  absl::Status reserved = ReserveOn(device, block.BytesNeeded(device, options.batch_tokens_max));
  if (!reserved.ok()) return reserved;
  const auto& workers = devices[device]->workers;
  for (size_t lane = 0; lane < workers.size(); ++lane) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!healthy[device]) return absl::OkStatus();  // when it is back it launches directly
    }
    absl::StatusOr<std::shared_ptr<BlockGraphs>> graphs = workers[lane]->Capture(block);
    if (!graphs.ok()) return graphs.status();
    block.graphs[device][lane] = *std::move(graphs);
  }
  workers.front()->Measure(block, options.measure_max);
  return absl::OkStatus();
}

absl::Status Engine::Impl::ReserveOn(size_t device, const LaneBytes& bytes) {
  DeviceState& state = *devices[device];
  LaneBytes before;
  {
    std::lock_guard<std::mutex> lock(mutex);
    before = state.needed;
    state.needed = Larger(before, bytes);
    if (!healthy[device]) return absl::OkStatus();  // it grows before it takes work again
  }
  for (auto& worker : state.workers) {
    absl::Status status = worker->Reserve(bytes);
    if (status.ok()) continue;
    std::lock_guard<std::mutex> lock(mutex);
    state.needed = before;
    return status;
  }
  return absl::OkStatus();
}

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
