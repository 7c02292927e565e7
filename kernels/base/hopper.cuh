// Instructions that came with Hopper, as functions: dependent launches, barriers that copies arrive
// at, bulk copies, clusters. Each is one instruction (the waits a loop over one, or the few that
// belong together) under the name that the PTX manual gives it. They are absent for older
// architectures: kernels that call them have no body there.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// What needs sm_90a: wgmma, and kernels that are built around it.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FUSEBLOCK_SM90A 1
#else
#define FUSEBLOCK_SM90A 0
#endif

namespace fuseblock {

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace fuseblock

namespace fuseblock::hopper {

#if __CUDA_ARCH__ >= 900

// ---- dependent launches: the next kernel of the stream may start; the previous ones have ended.

__device__ inline void LaunchDependents() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ inline void AwaitGrids() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// All threads of the block, wherever in the code their warps are: __syncthreads() is for one place.
__device__ inline void SyncBlock() {
  asm volatile("barrier.sync 1, %0;" ::"r"(blockDim.x) : "memory");
}

// ---- mbarriers, by shared address

__device__ inline void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers known to the copy engine.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and adds to what the phase waits for that many bytes of copies.
__device__ inline void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Returns when the phase of that parity has completed.
__device__ inline void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- bulk copies: one thread asks for kilobytes, and the hardware moves them while nobody waits
// with registers for them. Addresses and sizes are multiples of 16 bytes. A copy to shared memory
// completes on a barrier.

// For what is read once: it leaves the L2 first.
__device__ inline uint64_t EvictFirst() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t EvictNormal() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void BulkCopy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void BulkCopy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// Of bytes that a bulk copy brought there. Returns when shared memory has been read.
__device__ inline void BulkStore(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// The same into every block of the cluster whose bit is set in `blocks`, at the same place, where
// it completes on the barrier at that place.
__device__ inline void BulkCopyToCluster(uint32_t to, const void* from, uint32_t bytes,
                                         uint32_t barrier, uint16_t blocks, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1], %2, [%3], %4, %5;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(blocks), "l"(policy)
      : "memory");
}
// Between ordinary accesses and those of the copy engine and the tensor cores.
__device__ inline void FenceAsyncProxy() { asm volatile("fence.proxy.async;" ::: "memory"); }

// ---- clusters; every thread of every block takes part in both halves of a meeting

__device__ inline void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ inline void ClusterWait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// The address of the same place in another block of the cluster.
__device__ inline uint32_t ClusterAddress(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Arrives at a barrier in another block, by its ClusterAddress. It orders nothing that this block
// wrote (a release to the cluster is a fence that takes hundreds of cycles).
__device__ inline void BarrierArriveAt(uint32_t mapped) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}
__device__ inline void ClusterStore(uint32_t address, float2 v) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y)
               : "memory");
}
__device__ inline float2 SharedLoad(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

__device__ inline void PrefetchL2(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// ---- registers: a warpgroup's share of them, in a kernel whose launch bounds say how many it has.

#if FUSEBLOCK_SM90A
template <int kCount>
__device__ void GiveUpRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
#endif

// An 8 x 8 matrix of 16-bit elements, two of a row in each lane, transposed.
__device__ inline uint32_t Transpose8x8(uint32_t two) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(two));
  return out;
}

#endif  // __CUDA_ARCH__ >= 900

}  // namespace fuseblock::hopper
