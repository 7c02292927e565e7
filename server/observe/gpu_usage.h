// How busy the machine's GPUs are and how full their memory is, as NVIDIA's management library
// (NVML) says. Loaded at run time: without a driver there is nothing to say.
#pragma once

#include <cstdint>
#include <vector>

namespace fuseblock {

struct GpuSample {
  unsigned index = 0;      // as nvidia-smi counts
  double utilization = 0;  // share of the last sampling period with a kernel running, 0 .. 1
  uint64_t memory_used = 0, memory_total = 0;  // bytes, of all processes
};

// Not thread-safe.
class GpuUsage {
 public:
  explicit GpuUsage(const char* library = "libnvidia-ml.so.1");
  ~GpuUsage();
  GpuUsage(const GpuUsage&) = delete;
  GpuUsage& operator=(const GpuUsage&) = delete;

  // The GPUs that answer; none without the library.
  std::vector<GpuSample> Read();

 private:
  // The few functions that are used, by NVML's names and signatures; 0 is success.
  struct Functions {
    int (*init)();
    int (*shutdown)();
    int (*count)(unsigned*);
    int (*handle)(unsigned, void**);
    int (*utilization)(void*, unsigned[2]);       // percent: kernels, memory
    int (*memory)(void*, unsigned long long[3]);  // bytes: total, free, used
  };

  void* library_ = nullptr;
  Functions nvml_{};
};

}  // namespace fuseblock
