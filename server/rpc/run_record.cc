#include "server/rpc/run_record.h"

#include <gnu/libc-version.h>
#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/cuda.h"

namespace fuseblock {
namespace {

// "model name : Intel(R) Xeon(R)" -> "Intel(R) Xeon(R)"; the first one of the file.
std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

int Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

std::string Kernel() {
  utsname name;
  if (uname(&name) != 0) return "unknown";
  return absl::StrCat(name.sysname, " ", name.release, " ", name.machine);
}

// 13000 -> "13.0", as CUDA writes its versions.
std::string CudaVersion(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

void AddLibraries(v1::RunRecord* record) {
  auto& libraries = *record->mutable_libraries();
  libraries["grpc"] = grpc::Version();
  libraries["protobuf"] = google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
  libraries["abseil"] = absl::StrCat(ABSL_LTS_RELEASE_VERSION);
  libraries["glibc"] = gnu_get_libc_version();
  const FuseblockCudaRuntime* cuda = CudaRuntime();
  int version = 0;
  if (cuda == nullptr) return;
  if (cuda->runtime_version(&version) == 0) libraries["cuda runtime"] = CudaVersion(version);
  if (cuda->driver_version(&version) == 0) libraries["cuda driver"] = CudaVersion(version);
}

void AddDevice(Device device, v1::Hardware* hardware) {
  v1::HardwareDevice* entry = hardware->add_devices();
  entry->set_name(DeviceName(device));
  FuseblockCudaDevice properties{};
  if (device.type != DeviceType::kCuda || CudaRuntime() == nullptr ||
      CudaRuntime()->device_properties(device.index, &properties) != 0) {
    return;
  }
  entry->set_model(properties.name);
  entry->set_memory_bytes(static_cast<int64_t>(properties.total_bytes));
}

}  // namespace

v1::RunRecord MakeRunRecord(const BuildInfo& build, const Config& config,
                            const std::vector<Device>& devices) {
  v1::RunRecord record;
  record.set_version(build.version);
  record.set_commit(build.commit);
  record.set_build(absl::StrCat("GCC ", __VERSION__, ", ", FUSEBLOCK_BUILD_TYPE));
  record.set_config_toml(PrintConfig(config));
  v1::Hardware* hardware = record.mutable_hardware();
  hardware->set_cpu(CpuModel());
  hardware->set_cores(Cores());
  hardware->set_isa(build.isa);
  hardware->set_memory_bytes(int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  hardware->set_kernel(Kernel());
  for (const Device device : devices) AddDevice(device, hardware);
  AddLibraries(&record);
  record.mutable_start_time()->set_seconds(absl::ToUnixSeconds(absl::Now()));
  return record;
}

}  // namespace fuseblock
