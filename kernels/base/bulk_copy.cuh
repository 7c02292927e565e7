// Bulk copies between global and shared memory (Hopper on): one thread asks for kilobytes, and the
// hardware moves them while nobody waits with registers for them. Addresses and sizes are multiples
// of 16 bytes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fuseblock {

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// A barrier in shared memory that a bulk load arrives at, used once.
class BulkBarrier {
 public:
  // By one thread; others may use it after a barrier of the block.
  __device__ void Init() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(SharedAddress(&state_)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // By the thread that called Init.
  __device__ void Load(void* to_shared, const void* from, uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(&state_)),
        "r"(bytes)
        : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(SharedAddress(to_shared)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(SharedAddress(&state_))
        : "memory");
  }
  __device__ void Wait() {
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n\t"
        "WAIT_%=:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n\t"
        "@!done bra WAIT_%=;\n\t"
        "}" ::"r"(SharedAddress(&state_))
        : "memory");
  }

 private:
  uint64_t state_;
};

// Of bytes that a bulk load brought there. Returns when shared memory has been read.
__device__ inline void BulkStore(void* to, const void* from_shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(SharedAddress(from_shared)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace fuseblock
