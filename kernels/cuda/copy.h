// The kernel behind FuseblockCudaRuntime::copy_by_kernel.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace fuseblock {

// On the current device; as cuda_table.h says. Returns a cudaError_t.
int LaunchCopy(void* destination, const void* source, size_t bytes, uint64_t* stamps, void* stream);

}  // namespace fuseblock
