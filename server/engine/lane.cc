#include "server/engine/lane.h"

#include <algorithm>

#include "kernels/base/status.h"
#include "server/engine/cpu_lane.h"
#include "server/engine/cuda_lane.h"

namespace fuseblock {

absl::StatusOr<std::unique_ptr<Lane>> MakeLane(Device device, int cpu_threads) {
  if (device.type == DeviceType::kCuda) return CudaLane::Create(device);
  return std::make_unique<CpuLane>(cpu_threads);
}

LaneBytes Larger(const LaneBytes& a, const LaneBytes& b) {
  return {std::max(a.inputs, b.inputs), std::max(a.outputs, b.outputs),
          std::max(a.workspace, b.workspace), std::max(a.captured, b.captured)};
}

size_t BytesOf(const ConstTensorView& view) {
  if (view.data == nullptr) return 0;
  return static_cast<size_t>(view.elements()) * SizeOf(view.dtype);
}

absl::Status GrowTo(size_t bytes, MemoryKind kind, Buffer& buffer) {
  if (bytes <= buffer.size()) return absl::OkStatus();
  FUSEBLOCK_ASSIGN_OR_RETURN(buffer, Buffer::Allocate(kind, bytes));
  return absl::OkStatus();
}

}  // namespace fuseblock
