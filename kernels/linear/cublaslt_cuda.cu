// Finds and opens cuBLASLt; see the header for where it looks.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/linear/cublaslt_cuda.h"

namespace fuseblock {
namespace {

constexpr char kLibrary[] = "libcublasLt.so.13";

std::vector<std::string> Candidates() {
  if (const char* named = std::getenv("FUSEBLOCK_CUBLASLT")) return {named};
  std::vector<std::string> found = {kLibrary};
  std::vector<std::string> patterns;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable)) patterns.push_back(std::string(root) + "/lib64/");
  }
  patterns.insert(patterns.end(), {"/usr/local/cuda/lib64/", "/usr/local/cuda-13*/lib64/",
                                   "/usr/local/cuda*/targets/*/lib/"});
  const std::string wheel = "/lib/python3*/*-packages/nvidia/cu13/lib/";
  if (const char* root = std::getenv("VIRTUAL_ENV")) patterns.push_back(root + wheel);
  for (const char* root : {"/usr", "/usr/local", "/opt/*", "/opt/*/.venv"}) {
    patterns.push_back(root + wheel);
  }
  for (const std::string& pattern : patterns) {
    glob_t matches{};
    if (glob((pattern + kLibrary).c_str(), 0, nullptr, &matches) == 0) {
      found.insert(found.end(), matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    }
    globfree(&matches);
  }
  return found;
}

template <typename F>
bool Find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

const CublasLt* Load() {
  void* library = nullptr;
  for (const std::string& path : Candidates()) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) return nullptr;
  auto* lt = new CublasLt;  // kept until the process ends
  const bool complete =
      Find(library, "cublasLtCreate", lt->Create) && Find(library, "cublasLtMatmul", lt->Matmul) &&
      Find(library, "cublasLtMatmulAlgoCheck", lt->MatmulAlgoCheck) &&
      Find(library, "cublasLtMatmulAlgoConfigGetAttribute", lt->MatmulAlgoConfigGetAttribute) &&
      Find(library, "cublasLtMatmulAlgoGetHeuristic", lt->MatmulAlgoGetHeuristic) &&
      Find(library, "cublasLtMatmulDescCreate", lt->MatmulDescCreate) &&
      Find(library, "cublasLtMatmulDescDestroy", lt->MatmulDescDestroy) &&
      Find(library, "cublasLtMatmulDescSetAttribute", lt->MatmulDescSetAttribute) &&
      Find(library, "cublasLtMatmulPreferenceCreate", lt->MatmulPreferenceCreate) &&
      Find(library, "cublasLtMatmulPreferenceDestroy", lt->MatmulPreferenceDestroy) &&
      Find(library, "cublasLtMatmulPreferenceSetAttribute", lt->MatmulPreferenceSetAttribute) &&
      Find(library, "cublasLtMatrixLayoutCreate", lt->MatrixLayoutCreate) &&
      Find(library, "cublasLtMatrixLayoutDestroy", lt->MatrixLayoutDestroy) &&
      Find(library, "cublasLtMatrixLayoutSetAttribute", lt->MatrixLayoutSetAttribute);
  return complete ? lt : nullptr;
}

}  // namespace

const CublasLt* LoadCublasLt() {
  static const CublasLt* lt = Load();
  return lt;
}

cublasLtHandle_t CublasLtHandle(const CublasLt& lt, int device) {
  static std::mutex mutex;
  static auto* handles = new std::map<int, cublasLtHandle_t>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [it, inserted] = handles->try_emplace(device, nullptr);
  if (inserted) {
    cublasLtHandle_t handle = nullptr;
    if (cudaSetDevice(device) == cudaSuccess && lt.Create(&handle) == CUBLAS_STATUS_SUCCESS) {
      it->second = handle;
    }
  }
  return it->second;
}

}  // namespace fuseblock
