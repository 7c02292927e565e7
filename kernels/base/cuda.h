// The CUDA backend seen from host code: loads libfuseblock_kernels_cuda.so once, hands out its
// entry points, turns its error codes into statuses. Includes no CUDA header.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "kernels/base/cuda_table.h"
#include "kernels/base/tensor_view.h"

namespace fuseblock {

// The runtime's functions, or null when there is no usable backend. The library is looked for in
// $FUSEBLOCK_CUDA_LIBRARY, beside the program, in ../lib beside it, then by the loader's own path.
// Thread-safe; the first call loads.
const FuseblockCudaRuntime* CudaRuntime();

// Why CudaRuntime() is null ("libcuda.so.1: cannot open shared object file", "no CUDA device"), or
// empty when it is not.
std::string CudaUnavailableReason();

// For the kernels' lists: the reason above, and the first device's architecture as the detail.
std::string CudaUnavailable(std::string* detail);

// The same for the kernel whose launcher has that name, which the backend may lack.
std::string CudaKernelUnavailable(const char* name, std::string* detail);

// Makes the device current for the calling thread, as launchers need it.
absl::Status UseCudaDevice(Device device);

// The launcher of that name as F, or null when the backend lacks it.
void (*CudaEntry(const char* name))(void);
template <typename F>
F* CudaLauncher(const char* name) {
  return reinterpret_cast<F*>(CudaEntry(name));
}

// OK for 0. RESOURCE_EXHAUSTED when out of memory, UNAVAILABLE for a sticky error (the device is
// lost to this process), INTERNAL for any other; the message is "what: cudaErrorName: text".
absl::Status CudaStatus(const char* what, int error);

// A row operand for a launcher.
FuseblockCudaRows CudaRows(const Rows& rows, DType dtype);
FuseblockCudaRows CudaRows(const ConstRows& rows, DType dtype);

}  // namespace fuseblock
