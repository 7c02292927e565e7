// wgmma: a warpgroup's asynchronous product of two tiles in shared memory, FP32 sums in registers.
//
// Both tiles lie K-major in rows of 128 bytes with the 128-byte swizzle: 8 rows are an atom of 1024
// bytes at a multiple of 1024, in which the 16-byte chunk c of row r lies at chunk c ^ r; atoms
// follow one another. In a warpgroup's D of 64 x N, warp w has rows 16 w .. 16 w + 15; its lane l
// has in d[4 j + 2 h + i] row 8 h + l / 4 of those, column 8 j + 2 (l % 4) + i.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/base/hopper.cuh"

namespace fuseblock::hopper {

constexpr int kSwizzledRow = 128;                // bytes
constexpr int kSwizzledK = kSwizzledRow / 2;     // 16-bit elements
constexpr uint64_t kNextK16 = 2 * 16 / 16;       // what a step of 16 along K adds to a descriptor
constexpr uint64_t kNext64Rows = 64 * 128 / 16;  // and one of 64 rows

#if FUSEBLOCK_SM90A

// The descriptor of a tile at that shared address: 128-byte swizzle, atoms 1024 bytes apart.
__device__ inline uint64_t TileDescriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kAtomStride = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kLeadingUnused = uint64_t{1} << 16;
  return kSwizzle128 | kAtomStride | kLeadingUnused | ((address & 0x3ffff) >> 4);
}

// Before the first product, and between other uses of the accumulators and a product.
__device__ inline void ProductFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void ProductCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when at most kPending of the committed groups are not done.
template <int kPending>
__device__ void ProductWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Product<T, N>::Add(d, a, b, keep): d = A B^T (+ d where keep), A 64 x 16, B N x 16.
template <typename T, int N>
struct Product;

// clang-format off
#define FUSEBLOCK_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FUSEBLOCK_D8(i) FUSEBLOCK_D4(i), FUSEBLOCK_D4(i + 4)
#define FUSEBLOCK_D16(i) FUSEBLOCK_D8(i), FUSEBLOCK_D8(i + 8)
#define FUSEBLOCK_D32(i) FUSEBLOCK_D16(i), FUSEBLOCK_D16(i + 16)
#define FUSEBLOCK_D64(i) FUSEBLOCK_D32(i), FUSEBLOCK_D32(i + 32)
#define FUSEBLOCK_D112(i) FUSEBLOCK_D64(i), FUSEBLOCK_D32(i + 64), FUSEBLOCK_D16(i + 96)
#define FUSEBLOCK_D128(i) FUSEBLOCK_D64(i), FUSEBLOCK_D64(i + 64)
#define FUSEBLOCK_R4 "%0, %1, %2, %3"
#define FUSEBLOCK_R8 FUSEBLOCK_R4 ", %4, %5, %6, %7"
#define FUSEBLOCK_R16 FUSEBLOCK_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FUSEBLOCK_R32 FUSEBLOCK_R16 \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FUSEBLOCK_R64 FUSEBLOCK_R32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FUSEBLOCK_R112 FUSEBLOCK_R64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define FUSEBLOCK_R128 FUSEBLOCK_R112 \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on

// The three operands after the R registers are numbers A, B and KEEP.
#define FUSEBLOCK_PRODUCT(T, TYPE, N, R, A, B, KEEP)                                   \
  template <>                                                                          \
  struct Product<T, N> {                                                               \
    static __device__ void Add(float (&d)[N / 2], uint64_t a, uint64_t b, bool keep) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" KEEP                           \
                   ", 0;\n"                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE     \
                   " {" FUSEBLOCK_R##R "}, %" A ", %" B ", p, 1, 1, 0, 0;\n}"          \
                   : FUSEBLOCK_D##R(0)                                                 \
                   : "l"(a), "l"(b), "r"(static_cast<int>(keep)));                     \
    }                                                                                  \
  };
#define FUSEBLOCK_PRODUCTS(T, TYPE)                         \
  FUSEBLOCK_PRODUCT(T, TYPE, 8, 4, "4", "5", "6")           \
  FUSEBLOCK_PRODUCT(T, TYPE, 16, 8, "8", "9", "10")         \
  FUSEBLOCK_PRODUCT(T, TYPE, 32, 16, "16", "17", "18")      \
  FUSEBLOCK_PRODUCT(T, TYPE, 64, 32, "32", "33", "34")      \
  FUSEBLOCK_PRODUCT(T, TYPE, 128, 64, "64", "65", "66")     \
  FUSEBLOCK_PRODUCT(T, TYPE, 224, 112, "112", "113", "114") \
  FUSEBLOCK_PRODUCT(T, TYPE, 256, 128, "128", "129", "130")

FUSEBLOCK_PRODUCTS(__half, "f16")
FUSEBLOCK_PRODUCTS(__nv_bfloat16, "bf16")

#undef FUSEBLOCK_PRODUCTS
#undef FUSEBLOCK_PRODUCT
#undef FUSEBLOCK_R128
#undef FUSEBLOCK_R112
#undef FUSEBLOCK_R64
#undef FUSEBLOCK_R32
#undef FUSEBLOCK_R16
#undef FUSEBLOCK_R8
#undef FUSEBLOCK_R4
#undef FUSEBLOCK_D128
#undef FUSEBLOCK_D112
#undef FUSEBLOCK_D64
#undef FUSEBLOCK_D32
#undef FUSEBLOCK_D16
#undef FUSEBLOCK_D8
#undef FUSEBLOCK_D4

#endif  // FUSEBLOCK_SM90A

}  // namespace fuseblock::hopper
