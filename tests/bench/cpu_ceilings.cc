#include "tests/bench/cpu_ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "kernels/linear/linear.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define FUSEBLOCK_TARGET(isa) __attribute__((target(isa), noinline))
#define FUSEBLOCK_EVERY_ISA __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FUSEBLOCK_EVERY_ISA
#endif

namespace fuseblock {
namespace {

// A task reads four parts of its piece side by side: of one alone a core waits at every page.
constexpr size_t kPiece = 512 << 10;
constexpr size_t kStreams = 4;
constexpr size_t kTurn = 256 / sizeof(uint64_t);  // words of each part in turn

FUSEBLOCK_EVERY_ISA uint64_t Sum(const uint64_t* words, size_t count) {
  uint64_t sum = 0;
  const size_t part = count / (kStreams * kTurn) * kTurn;
  for (size_t i = 0; i < part; i += kTurn) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      for (size_t j = 0; j < kTurn; ++j) sum += words[stream * part + i + j];
    }
  }
  for (size_t i = kStreams * part; i < count; ++i) sum += words[i];
  return sum;
}

struct Unit {
  void (*run)(int64_t turns);
  double flop_per_turn;
};

#if defined(__x86_64__)

// 16 independent sums, more than latency times throughput of any unit.
#define FUSEBLOCK_16(of)                                                                         \
  of(0) of(1) of(2) of(3) of(4) of(5) of(6) of(7) of(8) of(9) of(10) of(11) of(12) of(13) of(14) \
      of(15)

FUSEBLOCK_TARGET("avx2,fma") void Fma256(int64_t turns) {
  __m256 sums[12];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  __m256 one = _mm256_set1_ps(1);
  for (int64_t i = 0; i < turns; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sums[j]) : "x"(one));
    }
  }
}

#define FUSEBLOCK_LOW_REGISTERS                                                            \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

// Zeros: what the registers hold might be subnormal, which takes a hundred times as long.
#define FUSEBLOCK_ZERO(n) "vpxorq %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n"
FUSEBLOCK_TARGET("avx512f") void Zero512() {
  asm volatile(FUSEBLOCK_16(FUSEBLOCK_ZERO) FUSEBLOCK_ZERO(30) FUSEBLOCK_ZERO(31)::
                   : FUSEBLOCK_LOW_REGISTERS);
}

FUSEBLOCK_TARGET("avx512f") void Fma512(int64_t turns) {
#define FUSEBLOCK_FMA(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"
  Zero512();
  for (int64_t i = 0; i < turns; ++i) {
    asm volatile(FUSEBLOCK_16(FUSEBLOCK_FMA)::: FUSEBLOCK_LOW_REGISTERS);
  }
}

FUSEBLOCK_TARGET("avx512f,avx512bf16") void Pairs512(int64_t turns) {
#define FUSEBLOCK_PAIRS(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n"
  Zero512();
  for (int64_t i = 0; i < turns; ++i) {
    asm volatile(FUSEBLOCK_16(FUSEBLOCK_PAIRS)::: FUSEBLOCK_LOW_REGISTERS);
  }
}

FUSEBLOCK_TARGET("amx-tile,amx-bf16") void Tiles(int64_t turns) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shapes;
  _tile_loadconfig(&shapes);
  asm volatile("" ::: "memory");
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < turns; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

bool MayUseTiles() {
  for (const auto& item : LinearImplementations()) {
    if (std::strcmp(item.name, "amx_bf16") == 0) return item.unavailable(nullptr).empty();
  }
  return false;
}

Unit FastestUnit(bool bf16) {
  if (bf16 && MayUseTiles()) return {Tiles, 4 * 2.0 * 16 * 16 * 32};
  // VDPBF16PS is no faster than two FMA on some CPUs; the better of both is found by measuring.
  if (bf16 && __builtin_cpu_supports("avx512bf16")) return {Pairs512, 16 * 2.0 * 32};
  if (__builtin_cpu_supports("avx512f")) return {Fma512, 16 * 2.0 * 16};
  if (__builtin_cpu_supports("avx2")) return {Fma256, 12 * 2.0 * 8};
  return {nullptr, 0};
}

#else

Unit FastestUnit(bool) { return {nullptr, 0}; }

#endif

double Rate(const Unit& unit, const ParallelFor& threads) {
  using Clock = std::chrono::steady_clock;
  const auto time = [&](int64_t turns) {
    const auto begin = Clock::now();
    threads(threads.threads, [&](int64_t) { unit.run(turns); });
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  constexpr int64_t kFew = 10000;
  const double few = std::max(1e-6, time(kFew));
  const auto turns = static_cast<int64_t>(kFew * 0.005 / few) + 1;
  return unit.flop_per_turn * static_cast<double>(turns) * threads.threads / time(turns);
}

}  // namespace

uint64_t ReadOnce(const std::byte* data, size_t bytes, const ParallelFor& threads) {
  std::atomic<uint64_t> total{0};
  threads(static_cast<int64_t>((bytes + kPiece - 1) / kPiece), [&](int64_t task) {
    const size_t begin = static_cast<size_t>(task) * kPiece;
    const size_t size = std::min(kPiece, bytes - begin);
    total += Sum(reinterpret_cast<const uint64_t*>(data + begin), size / sizeof(uint64_t));
  });
  return total;
}

double MultiplyPeak(bool bf16, const ParallelFor& threads) {
  const Unit unit = FastestUnit(bf16);
  double peak = unit.run == nullptr ? 0 : Rate(unit, threads);
  // Where BF16 has no faster unit of its own, it is widened and multiplied as FP32.
  if (bf16) peak = std::max(peak, MultiplyPeak(false, threads));
  return peak;
}

}  // namespace fuseblock
