#include "server/observe/gpu_usage.h"

#include <dlfcn.h>

namespace fuseblock {
namespace {

template <typename F>
bool Find(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

GpuUsage::GpuUsage(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return;
  const bool complete = Find(handle, "nvmlInit_v2", nvml_.init) &&
                        Find(handle, "nvmlShutdown", nvml_.shutdown) &&
                        Find(handle, "nvmlDeviceGetCount_v2", nvml_.count) &&
                        Find(handle, "nvmlDeviceGetHandleByIndex_v2", nvml_.handle) &&
                        Find(handle, "nvmlDeviceGetUtilizationRates", nvml_.utilization) &&
                        Find(handle, "nvmlDeviceGetMemoryInfo", nvml_.memory);
  if (complete && nvml_.init() == 0) {
    library_ = handle;
  } else {
    dlclose(handle);
  }
}

GpuUsage::~GpuUsage() {
  if (library_ == nullptr) return;
  nvml_.shutdown();
  dlclose(library_);
}

std::vector<GpuSample> GpuUsage::Read() {
  std::vector<GpuSample> samples;
  unsigned count = 0;
  if (library_ == nullptr || nvml_.count(&count) != 0) return samples;
  for (unsigned i = 0; i < count; ++i) {
    void* gpu = nullptr;
    unsigned percent[2] = {};
    unsigned long long bytes[3] = {};
    if (nvml_.handle(i, &gpu) != 0 || nvml_.utilization(gpu, percent) != 0 ||
        nvml_.memory(gpu, bytes) != 0) {
      continue;  // a GPU that fell off the bus; the others go on
    }
    samples.push_back({i, percent[0] / 100.0, bytes[2], bytes[0]});
  }
  return samples;
}

}  // namespace fuseblock
