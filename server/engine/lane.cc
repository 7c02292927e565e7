#include "server/engine/lane.h"

#include "server/engine/cpu_lane.h"
#include "server/engine/cuda_lane.h"

namespace fuseblock {

absl::StatusOr<std::unique_ptr<Lane>> MakeLane(Device device, int cpu_threads) {
  if (device.type == DeviceType::kCuda) return CudaLane::Create(device);
  return std::make_unique<CpuLane>(cpu_threads);
}

size_t BytesOf(const ConstTensorView& view) {
  if (view.data == nullptr) return 0;
  return static_cast<size_t>(view.elements()) * SizeOf(view.dtype);
}

}  // namespace fuseblock
