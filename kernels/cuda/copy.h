// The kernel behind FuseblockCudaRuntime::copy_by_kernel.
#pragma once

#include <stddef.h>

namespace fuseblock {

// On the current device; the pointers and `bytes` are multiples of 16. Returns a cudaError_t.
int LaunchCopy(void* destination, const void* source, size_t bytes, void* stream);

}  // namespace fuseblock
