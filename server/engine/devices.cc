#include "server/engine/devices.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/cuda.h"

namespace fuseblock {
namespace {

int CudaDeviceCount() {
  int count = 0;
  const FuseblockCudaRuntime* cuda = CudaRuntime();
  if (cuda == nullptr || cuda->device_count(&count) != 0) return 0;
  return count;
}

absl::StatusOr<Device> ParseDevice(absl::string_view name, int cuda_count) {
  if (name == "cpu") return Device{};
  absl::string_view number = name;
  int index = 0;
  if (!absl::ConsumePrefix(&number, "cuda:") || !absl::SimpleAtoi(number, &index) || index < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("devices: expected \"auto\", \"cpu\" or \"cuda:N\", got \"", name, "\""));
  }
  if (index >= cuda_count) {
    const std::string reason = CudaUnavailableReason();
    return absl::NotFoundError(absl::StrCat(
        "devices: ", name,
        " is not there: ", reason.empty() ? absl::StrCat(cuda_count, " CUDA devices") : reason));
  }
  return Device{DeviceType::kCuda, index};
}

}  // namespace

absl::StatusOr<std::vector<Device>> ResolveDevices(std::string_view text, FallbackPolicy fallback) {
  const int cuda_count = CudaDeviceCount();
  std::vector<Device> devices;
  if (text == "auto") {
    for (int i = 0; i < cuda_count; ++i) devices.push_back({DeviceType::kCuda, i});
    devices.push_back({});
    return devices;
  }
  const absl::string_view names(text.data(), text.size());
  for (const absl::string_view part : absl::StrSplit(names, ',')) {
    absl::StatusOr<Device> device = ParseDevice(absl::StripAsciiWhitespace(part), cuda_count);
    if (!device.ok()) return device.status();
    if (std::find(devices.begin(), devices.end(), *device) != devices.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("devices: ", DeviceName(*device), " is named twice"));
    }
    devices.push_back(*device);
  }
  const bool has_cpu = std::find(devices.begin(), devices.end(), Device{}) != devices.end();
  if (fallback == FallbackPolicy::kCpu && !has_cpu) devices.push_back({});
  return devices;
}

int GpuCount(const std::vector<Device>& devices) {
  return static_cast<int>(std::count_if(devices.begin(), devices.end(), [](const Device& device) {
    return device.type != DeviceType::kCpu;
  }));
}

Serving WhoServes(const std::vector<Device>& devices, const std::vector<bool>& has,
                  const std::vector<bool>& healthy, FallbackPolicy fallback) {
  const auto any_healthy = [&](DeviceType type) {
    for (size_t i = 0; i < devices.size(); ++i) {
      if (devices[i].type == type && has[i] && healthy[i]) return true;
    }
    return false;
  };
  const auto first = std::find(has.begin(), has.end(), true);
  if (first == has.end()) return {};
  const DeviceType preferred = devices[first - has.begin()].type;
  if (any_healthy(preferred)) return {true, false, preferred};
  if (fallback == FallbackPolicy::kCpu && any_healthy(DeviceType::kCpu)) {
    return {true, true, DeviceType::kCpu};
  }
  return {};
}

}  // namespace fuseblock
