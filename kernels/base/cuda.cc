#include "kernels/base/cuda.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fuseblock {
namespace {

constexpr char kLibrary[] = "libfuseblock_kernels_cuda.so";
constexpr int kErrorMemoryAllocation = 2;  // cudaErrorMemoryAllocation

struct Backend {
  const FuseblockCudaTable* table = nullptr;
  std::string unavailable;
  std::string architecture;
};

std::vector<std::string> Candidates() {
  std::vector<std::string> paths;
  if (const char* named = std::getenv("FUSEBLOCK_CUDA_LIBRARY")) return {named};
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path folder = program.parent_path();
    paths.push_back((folder / kLibrary).string());
    paths.push_back((folder.parent_path() / "lib" / kLibrary).string());
  }
  paths.emplace_back(kLibrary);
  return paths;
}

Backend Load() {
  Backend backend;
  // The driver first: without one the backend's half a gigabyte of libraries is not worth loading.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    backend.unavailable = "no CUDA driver (libcuda.so.1 is not there)";
    return backend;
  }
  void* library = nullptr;
  for (const std::string& path : Candidates()) {
    if (path.find('/') != std::string::npos && !std::filesystem::exists(path)) continue;
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    backend.unavailable = dlerror();
  }
  if (library == nullptr) {
    if (backend.unavailable.empty()) backend.unavailable = absl::StrCat(kLibrary, " not found");
    return backend;
  }
  auto* function =
      reinterpret_cast<FuseblockCudaTableFunction>(dlsym(library, FUSEBLOCK_CUDA_TABLE_SYMBOL));
  const FuseblockCudaTable* table = function == nullptr ? nullptr : function();
  if (table == nullptr || table->version != FUSEBLOCK_CUDA_TABLE_VERSION) {
    backend.unavailable = absl::StrCat(kLibrary, ": built from another version (table ",
                                       table == nullptr ? 0 : table->version, ", expected ",
                                       FUSEBLOCK_CUDA_TABLE_VERSION, ")");
    return backend;
  }
  int count = 0;
  if (const int error = table->runtime.device_count(&count); error != 0 || count == 0) {
    backend.unavailable =
        error == 0 ? "no CUDA device"
                   : absl::StrCat("no CUDA device: ", table->runtime.error_string(error));
    return backend;
  }
  FuseblockCudaDevice device;
  if (table->runtime.device_properties(0, &device) == 0) {
    backend.architecture = absl::StrCat(device.name, ", sm_", device.major, device.minor);
  }
  backend.unavailable.clear();
  backend.table = table;
  return backend;
}

const Backend& LoadedBackend() {
  static const Backend* backend = new Backend(Load());  // never destroyed: kernels run until exit
  return *backend;
}

}  // namespace

const FuseblockCudaRuntime* CudaRuntime() {
  const Backend& backend = LoadedBackend();
  return backend.table == nullptr ? nullptr : &backend.table->runtime;
}

std::string CudaUnavailableReason() { return LoadedBackend().unavailable; }

std::string CudaUnavailable(std::string* detail) {
  const Backend& backend = LoadedBackend();
  if (detail != nullptr) *detail = backend.architecture;
  return backend.unavailable;
}

void (*CudaEntry(const char* name))(void) {
  const FuseblockCudaTable* table = LoadedBackend().table;
  for (int i = 0; table != nullptr && i < table->entry_count; ++i) {
    if (std::strcmp(table->entries[i].name, name) == 0) return table->entries[i].entry;
  }
  return nullptr;
}

std::string CudaKernelUnavailable(const char* name, std::string* detail) {
  std::string reason = CudaUnavailable(detail);
  if (reason.empty() && CudaEntry(name) == nullptr) {
    reason = absl::StrCat(kLibrary, " has no kernel ", name);
  }
  return reason;
}

absl::Status UseCudaDevice(Device device) {
  const FuseblockCudaRuntime* runtime = CudaRuntime();
  if (runtime == nullptr) return absl::UnavailableError(CudaUnavailableReason());
  return CudaStatus("choosing the device", runtime->set_device(device.index));
}

absl::Status CudaStatus(const char* what, int error) {
  if (error == 0) return absl::OkStatus();
  const FuseblockCudaRuntime* runtime = CudaRuntime();
  if (runtime == nullptr) {
    return absl::UnavailableError(absl::StrCat(what, ": ", CudaUnavailableReason()));
  }
  const std::string message =
      absl::StrCat(what, ": ", runtime->error_name(error), ": ", runtime->error_string(error));
  if (error == kErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  if (runtime->error_is_sticky(error) != 0) return absl::UnavailableError(message);
  return absl::InternalError(message);
}

FuseblockCudaRows CudaRows(const Rows& rows, DType dtype) {
  return {rows.data, static_cast<int>(dtype), rows.rows, rows.cols, rows.stride};
}

FuseblockCudaRows CudaRows(const ConstRows& rows, DType dtype) {
  return {const_cast<void*>(rows.data), static_cast<int>(dtype), rows.rows, rows.cols, rows.stride};
}

}  // namespace fuseblock
