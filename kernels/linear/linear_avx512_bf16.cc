// The BF16 product on CPUs with AVX512-BF16, whose VDPBF16PS does two steps of 16 outputs at once.
// Highway 1.0 has no target with that instruction, so this file dispatches on its own.
//
// VDPBF16PS adds the product of the odd halves first, then that of the even halves, each rounded to
// nearest even: the panels hold the earlier step in the odd half, so the chain is the same as
// linear_cpu.cc's and so are the bits, except that subnormal operands, sums and products count as
// zero here. That adds at most K * 2^-126 to an output's error.
#include <algorithm>
#include <cstring>

#include "kernels/linear/linear_packed.h"
#include "kernels/linear/linear_tasks.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#ifndef __clang__
// GCC's own intrinsics use a value that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")
#endif

namespace fuseblock {
namespace {

// Between the pragmas nothing calls an inline function from elsewhere: see base/simd-inl.h.

constexpr int kWidth = static_cast<int>(kPanelWidth);
constexpr int kLanes = 16;
constexpr int kVectors = kWidth / kLanes;
constexpr int kPairs = static_cast<int>(kSegment) / 2;  // of steps in a segment
constexpr int64_t kLineBytes = 64;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kWindowPairs = kPageBytes / kLineBytes;
constexpr int64_t kWindowWords = kWindowPairs * kPanelWidth;
static_assert(kWindowWords * 4 == kVectors * kPageBytes);
constexpr int64_t kRowsMax = 36;  // at a time: what is staged of them stays in the L1 cache

// Adds `pairs` pairs of steps to the totals of kRows rows. x: kPairs pairs a row; ahead: of four
// pages, of each of which every pair asks for the next line.
template <int kRows>
__attribute__((noinline)) void Tile(const uint32_t* w, const char* ahead, int64_t pairs,
                                    const uint32_t* x, float* total) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    __m512i weights[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      weights[v] = _mm512_loadu_si512(w + pair * kWidth + v * kLanes);
      __builtin_prefetch(ahead + pair * kLineBytes + v * kPageBytes);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512i a = _mm512_set1_epi32(static_cast<int>(x[r * kPairs + pair]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)weights[v], (__m512bh)a);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* t = total + r * kWidth + v * kLanes;
      _mm512_storeu_ps(t, _mm512_add_ps(_mm512_loadu_ps(t), sum[r][v]));
    }
  }
}

void SegmentRows(const uint32_t* w, const char* ahead, int64_t pairs, const uint32_t* x,
                 int64_t rows, float* total) {
  for (int64_t row = 0; row < rows; row += kTileRowsMax) {
    const uint32_t* xr = x + row * kPairs;
    float* tr = total + row * kWidth;
    switch (rows - row) {
      case 1:
        Tile<1>(w, ahead, pairs, xr, tr);
        break;
      case 2:
        Tile<2>(w, ahead, pairs, xr, tr);
        break;
      case 3:
        Tile<3>(w, ahead, pairs, xr, tr);
        break;
      case 4:
        Tile<4>(w, ahead, pairs, xr, tr);
        break;
      case 5:
        Tile<5>(w, ahead, pairs, xr, tr);
        break;
      default:
        Tile<6>(w, ahead, pairs, xr, tr);
    }
  }
}

// The activations of a segment in pairs with the earlier step in the odd half; a lone last step is
// paired with zero.
void Stage(const PanelTask& task, int64_t k, int64_t length, uint32_t* out) {
  for (int64_t row = 0; row < task.rows; ++row) {
    const std::byte* from = task.x + row * task.x_stride + k * 2;
    for (int64_t i = 0; i < length; i += 32) {
      const int64_t left = length - i;
      const __mmask32 mask = left >= 32 ? 0xFFFFFFFFu : (1u << left) - 1;
      const __m512i steps = _mm512_maskz_loadu_epi16(mask, from + i * 2);
      _mm512_storeu_si512(out + row * kPairs + i / 2, _mm512_rol_epi32(steps, 16));
    }
  }
}

// Rounds to nearest even; subnormals are kept, which VCVTNEPS2BF16 does not do.
__m256i ToBf16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}

void StoreRows(const PanelTask& task, const float* total) {
  for (int64_t row = 0; row < task.rows; ++row) {
    for (int column = 0; column < task.columns; column += kLanes) {
      __m512 value = _mm512_loadu_ps(total + row * kWidth + column);
      if (task.bias != nullptr) {
        value = _mm512_add_ps(value, _mm512_loadu_ps(task.bias + column));
      }
      const int64_t left = task.columns - column;
      const __mmask16 mask = static_cast<__mmask16>(left >= kLanes ? 0xFFFFu : (1u << left) - 1);
      std::byte* to = task.y + row * task.y_stride;
      if (task.y_dtype == DType::kF32) {
        _mm512_mask_storeu_ps(to + column * 4, mask, value);
      } else {
        _mm256_mask_storeu_epi16(to + column * 2, mask, ToBf16(value));
      }
    }
  }
}

// What the segment from that pair of steps on asks for: its part of the window that comes after its
// own. The hardware fetches ahead within a page and starts anew with each, so that a core that
// reads page after page waits at every one; of a window all pages are asked for at once.
const char* AheadOf(const uint32_t* panel, int64_t pair) {
  const int64_t window = pair / kWindowPairs + 1;
  return reinterpret_cast<const char*>(panel + window * kWindowWords) +
         pair % kWindowPairs * kLineBytes;
}

void RunTask(const PanelTask& task) {
  alignas(64) float total[kRowsMax * kPanelWidth];
  alignas(64) uint32_t x[kRowsMax * kPairs];
  memset(total, 0, static_cast<size_t>(task.rows * kPanelWidth) * sizeof(float));
  for (int64_t k = 0; k < task.k; k += kSegment) {
    const int64_t length = task.k - k < kSegment ? task.k - k : kSegment;
    Stage(task, k, length, x);
    const uint32_t* panel = static_cast<const uint32_t*>(task.panel);
    SegmentRows(panel + k / 2 * kPanelWidth, AheadOf(panel, k / 2), (length + 1) / 2, x, task.rows,
                total);
  }
  if (task.epilogue == LinearEpilogue::kNone) {
    StoreRows(task, total);
  } else {
    StorePanelRows(task, total);
  }
}

}  // namespace
}  // namespace fuseblock

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace fuseblock {
namespace {

void RunGroup(const LinearArgs& args, const PanelGroup& group) {
  for (int64_t panel = group.panel; panel < group.panel + group.panels; ++panel) {
    for (int64_t row = 0; row < group.rows; row += kRowsMax) {
      RunTask(PanelTaskOf(args, panel, group.row + row, std::min(kRowsMax, group.rows - row)));
    }
  }
}

}  // namespace

std::string LinearAvx512Bf16Unavailable(std::string* detail) {
  if (detail != nullptr) *detail = "AVX512-BF16";
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    return "";
  }
  return "the CPU has no AVX512-BF16";
}

// Intel's Sapphire Rapids issues one in two cycles, and in that time four fused multiply-adds that
// do twice its work (measured); AMD's Zen 4 issues one a cycle where it issues one multiply-add.
bool LinearAvx512Bf16IsFast() { return __builtin_cpu_is("amd"); }

absl::Status LinearAvx512Bf16(const ExecutionContext& context, const LinearArgs& args) {
  RunPanelGroups(context, args, RunGroup);
  return absl::OkStatus();
}

}  // namespace fuseblock

#else

namespace fuseblock {

std::string LinearAvx512Bf16Unavailable(std::string*) { return "not an x86-64 CPU"; }

bool LinearAvx512Bf16IsFast() { return false; }

absl::Status LinearAvx512Bf16(const ExecutionContext&, const LinearArgs&) {
  return absl::UnimplementedError("linear: AVX512-BF16 is not there");
}

}  // namespace fuseblock

#endif
