// The BF16 product on CPUs with AMX, whose TDPBF16PS adds to 16 x 16 sums the products of 32 steps.
//
// The sums lie in tiles of 16 rows by 16 outputs; four of them make a panel's width. Activations
// are staged for all panels of a task, as tiles of 16 rows by 32 steps. A panel is worked through
// in blocks of 256 steps: one stays in the L1 cache while all row tiles pass, and their sums go to
// and from the L2 cache. Where there is one row tile only, its sums stay where they are for a whole
// segment. While the row tiles pass over a block they ask for the next one, at several places at
// once: one place after the other keeps memory less busy.
//
// Versions, on one core of a Sapphire Rapids: ms of the feed-forward of 4096/14336 with 256, 64 and
// 1 tokens, the fastest turns of one run. Of the 256 tokens' about 39 are the tiles' own, at the
// rate of random operands (zeros go a fifth faster).
//   129 44 21.3  sums row by row, 4 panels a task, the first row tile asks for lines 1 KiB ahead
//   128 44 21.4  sums tile by tile
//   117 40 22.9  a block asks for the next one, from its begin to its end
//   114 38 20.0  at four places
//   114 34 20.0  as many panels a task as the sums have room for
//   116 35 19.7  at eight places where there are no more than 8 row tiles
//   100 34 19.5  room for 8 panels of 256 rows; equal blocks
// What did not help: adding a segment's sums one row tile later; asking for the activations that
// are staged next (it slowed the products by more than staging gained); staging row by row; sums
// stored and loaded between the next products. Blocks of two by two tiles take half of the L1
// cache's sets for a panel 64 outputs wide, and would have to be shorter.
//
// Order of a sum, which K alone decides: of 32 steps, the even ones are one chain of fused
// multiply-adds from zero and the odd ones another (that is how the instruction is defined); their
// sum is added to the segment's; a segment has 1024 steps, and the segments' sums are added in
// order. So an output has fewer roundings than with linear_tasks.h's order, but other bits than the
// other implementations give. Subnormal operands and products count as zero, which adds at most K *
// 2^-126 to an output's error.
#include <algorithm>
#include <cstring>

#include "kernels/base/ceil_div.h"
#include "kernels/linear/linear_packed.h"
#include "kernels/linear/linear_tasks.h"

#if defined(__x86_64__) && defined(__GNUC__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __clang__
// GCC's own intrinsics use a value that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace fuseblock {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileSteps = 32;
constexpr int64_t kRowTileBytes = 64;  // of a row in 32 steps
constexpr int64_t kTileBytes = kTileRows * kRowTileBytes;
constexpr int64_t kTileSums = kTileRows * 16;
constexpr int64_t kBlockTiles = 8;  // of 32 steps: 32 KiB of a panel
constexpr int64_t kSegmentTiles = 32;
constexpr int64_t kRowBytes = kPanelWidth * 4;                // a pair of steps, or sums
constexpr int64_t kStepBytes = kPanelWidth * kTileSteps * 2;  // of a panel in 32 steps
// Rows that pass over a panel while it is read once. More do not make the reading matter less.
constexpr int64_t kChunkRows = 256;
constexpr int64_t kRowTileSums = kTileRows * kPanelWidth;
constexpr int64_t kChunkSums = kChunkRows * kPanelWidth;
constexpr int64_t kTaskSums = 8 * kChunkSums;
constexpr int64_t kTaskPanelsMax = 32;
constexpr int64_t kTasksPerThread = 4;  // or tasks of one panel: a slow thread then holds up less
constexpr int64_t kStagingPanels = 2;   // that are multiplied in the time of staging
constexpr int64_t kStreams = 8;         // places of memory that are read at the same time

// A task's activations: rows, a stride apart in bytes.
struct Activations {
  const std::byte* data;
  int64_t stride;
  int64_t rows;
};

}  // namespace
}  // namespace fuseblock

#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16")
#endif

namespace fuseblock {
namespace {

// Between the pragmas nothing calls an inline function from elsewhere: see base/simd-inl.h.

struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The compiler does not know which memory the tile instructions read and write.
#define FUSEBLOCK_TILES_SEE_MEMORY() asm volatile("" ::: "memory")

// What is asked for with each 32 steps of a row tile: a few lines at each of several places.
struct Ahead {
  const std::byte* from;
  int64_t bytes;
  int64_t streams;
  int64_t apart;
};

inline __attribute__((always_inline)) void AskFor(const Ahead& ahead, int64_t step) {
  const std::byte* from = ahead.from + step * ahead.bytes;
  for (int64_t stream = 0; stream < ahead.streams; ++stream, from += ahead.apart) {
    for (int64_t line = 0; line < ahead.bytes; line += 64) {
      _mm_prefetch(from + line, _MM_HINT_T1);
    }
  }
}

// Sums of `count` times 32 steps of one row tile and all four column tiles, onto those in tiles 0
// to 3.
inline __attribute__((always_inline)) void AddSteps(const std::byte* x, const std::byte* w,
                                                    int64_t count, const Ahead& ahead) {
  for (int64_t i = 0; i < count; ++i, x += kTileBytes, w += kStepBytes) {
    AskFor(ahead, i);
    _tile_loadd(4, x, 64);
    _tile_loadd(5, w, kRowBytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, w + 64, kRowBytes);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, w + 128, kRowBytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, w + 192, kRowBytes);
    _tile_dpbf16ps(3, 4, 5);
  }
}

// A row tile's sums lie tile by tile: 64 lines in a row move between the caches in half the time of
// a tile's rows four lines apart.
void StoreSums(float* to) {
  _tile_stored(0, to, 64);
  _tile_stored(1, to + kTileSums, 64);
  _tile_stored(2, to + 2 * kTileSums, 64);
  _tile_stored(3, to + 3 * kTileSums, 64);
  FUSEBLOCK_TILES_SEE_MEMORY();
}

void LoadSums(const float* from) {
  _tile_loadd(0, from, 64);
  _tile_loadd(1, from + kTileSums, 64);
  _tile_loadd(2, from + 2 * kTileSums, 64);
  _tile_loadd(3, from + 3 * kTileSums, 64);
}

void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

void AddTo(float* total, const float* part, int64_t values) {
  for (int64_t i = 0; i < values; i += 16) {
    _mm512_storeu_ps(total + i,
                     _mm512_add_ps(_mm512_loadu_ps(total + i), _mm512_loadu_ps(part + i)));
  }
}

// A segment of a panel in steps of 32, of which the last is filled up with zeros where K ends
// within it.
struct Segment {
  const std::byte* w;
  int64_t whole;          // steps of 32 that K fills
  const std::byte* tail;  // the one that it does not, or null
  bool first;             // of K's segments
  const std::byte* next;  // what is read after it
};

// One block of one row tile. `part`: its sums of the segment; of the first segment they are its
// `total` so far.
struct Block {
  const std::byte* w;
  int64_t whole;
  const std::byte* tail;
  bool begins, ends;  // the segment
  bool first;
};

void RunBlock(const Block& block, const std::byte* x, const Ahead& ahead, float* part,
              float* total) {
  float* sums = block.first ? total : part;
  if (block.begins) {
    ZeroSums();
  } else {
    LoadSums(sums);
  }
  AddSteps(x, block.w, block.whole, ahead);
  if (block.tail != nullptr) AddSteps(x + block.whole * kTileBytes, block.tail, 1, {});
  StoreSums(sums);
  if (block.ends && !block.first) AddTo(total, part, kRowTileSums);
}

// All row tiles together ask for as much as the block has: about what the next one has.
Ahead AheadOf(const std::byte* next, int64_t tiles, int64_t row_tiles) {
  if (next == nullptr) return {};
  const int64_t lines = (kStepBytes / 64 + row_tiles - 1) / row_tiles;
  const int64_t streams = lines < kStreams ? lines : kStreams;
  return {next, (lines + streams - 1) / streams * 64, streams, tiles * kStepBytes / streams};
}

__attribute__((noinline)) void AddSegment(const Segment& segment, const std::byte* x,
                                          int64_t row_tiles, int64_t block_tiles, float* part,
                                          float* total) {
  const int64_t tiles = segment.whole + (segment.tail != nullptr ? 1 : 0);
  for (int64_t tile = 0; tile < tiles; tile += block_tiles) {
    const int64_t end = tile + block_tiles < tiles ? tile + block_tiles : tiles;
    const bool ends = end == tiles;
    const Block block = {segment.w + tile * kStepBytes,
                         (ends ? segment.whole : end) - tile,
                         ends ? segment.tail : nullptr,
                         tile == 0,
                         ends,
                         segment.first};
    Ahead ahead =
        AheadOf(ends ? segment.next : segment.w + end * kStepBytes, end - tile, row_tiles);
    for (int64_t row_tile = 0; row_tile < row_tiles; ++row_tile) {
      RunBlock(block, x, ahead, part + row_tile * kRowTileSums, total + row_tile * kRowTileSums);
      x += (end - tile) * kTileBytes;
      ahead.from += (end - tile) * ahead.bytes;
    }
  }
}

// 32 steps of a row tile, pairs in the order of the panels': the earlier step in the upper half.
// Rows and steps that are lacking are zero.
void StageTile(const std::byte* x, int64_t stride, int64_t rows, int64_t steps, std::byte* to) {
  const __mmask32 mask = steps >= kTileSteps ? 0xFFFFFFFFu : (1u << steps) - 1;
  for (int64_t row = 0; row < kTileRows; ++row, to += kRowTileBytes) {
    const __m512i from =
        row < rows ? _mm512_maskz_loadu_epi16(mask, x + row * stride) : _mm512_setzero_si512();
    _mm512_store_si512(to, _mm512_rol_epi32(from, 16));
  }
}

// The activations of a segment, as the row tiles pass over it: by blocks, in a block by row tiles.
void StageSegment(const Activations& x, int64_t row_tiles, int64_t steps, int64_t block_tiles,
                  std::byte* to) {
  const int64_t tiles = (steps + kTileSteps - 1) / kTileSteps;
  for (int64_t begin = 0; begin < tiles; begin += block_tiles) {
    const int64_t end = begin + block_tiles < tiles ? begin + block_tiles : tiles;
    for (int64_t row = 0; row < row_tiles * kTileRows; row += kTileRows) {
      for (int64_t tile = begin; tile < end; ++tile, to += kTileBytes) {
        const int64_t step = tile * kTileSteps;
        StageTile(x.data + row * x.stride + step * 2, x.stride, x.rows - row, steps - step, to);
      }
    }
  }
}

// A task's memory.
struct Scratch {
  alignas(64) std::byte staged[kChunkRows * kSegmentTiles * kRowTileBytes];
  alignas(64) float part[kChunkSums];
  alignas(64) float totals[kTaskSums];  // of all row tiles of a panel, then of the next
  alignas(64) float rows[kRowTileSums];
};
static_assert(sizeof(Scratch) + kStepBytes <= kLinearTaskStackBytes,
              "callers' threads have no more stack");

// Of a segment's blocks, as equal as can be: what one asks for is about what the next one has.
int64_t BlockTiles(int64_t steps) {
  const int64_t tiles = (steps + kTileSteps - 1) / kTileSteps;
  const int64_t blocks = (tiles + kBlockTiles - 1) / kBlockTiles;
  return (tiles + blocks - 1) / blocks;
}

// All sums of `panels` neighbouring panels, segment by segment: the activations of a segment are
// staged once and stay in the L2 cache while the panels pass.
void RunPanels(const std::byte* w, int64_t panels, int64_t k, Activations x, const std::byte* after,
               Scratch& scratch) {
  alignas(64) std::byte tail[kStepBytes];
  constexpr int64_t kSegmentSteps = kSegmentTiles * kTileSteps;
  const int64_t panel_bytes = (k + 1) / 2 * kRowBytes;
  const int64_t row_tiles = (x.rows + kTileRows - 1) / kTileRows;
  const int64_t panel_sums = row_tiles * kRowTileSums;
  const TileShapes shapes;
  _tile_loadconfig(&shapes);
  for (int64_t begin = 0; begin < k; begin += kSegmentSteps, x.data += kSegmentSteps * 2) {
    const int64_t steps = k - begin < kSegmentSteps ? k - begin : kSegmentSteps;
    const int64_t block_tiles = row_tiles == 1 ? kSegmentTiles : BlockTiles(steps);
    StageSegment(x, row_tiles, steps, block_tiles, scratch.staged);
    const int64_t whole = steps / kTileSteps;
    const int64_t left = (steps % kTileSteps + 1) / 2 * kRowBytes;
    for (int64_t panel = 0; panel < panels; ++panel) {
      const std::byte* from = w + panel * panel_bytes + begin / 2 * kRowBytes;
      if (left > 0) {
        memcpy(tail, from + whole * kStepBytes, static_cast<size_t>(left));
        memset(tail + left, 0, static_cast<size_t>(kStepBytes - left));
      }
      FUSEBLOCK_TILES_SEE_MEMORY();
      const std::byte* next = panel + 1 < panels  ? from + panel_bytes
                              : begin + steps < k ? w + (begin + steps) / 2 * kRowBytes
                                                  : after;
      AddSegment({from, whole, left > 0 ? tail : nullptr, begin == 0, next}, scratch.staged,
                 row_tiles, block_tiles, scratch.part, scratch.totals + panel * panel_sums);
    }
  }
  _tile_release();
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

// The system lends a process the tiles when it asks for them.
bool MayUseTiles() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // leaf 7's EDX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;   // arch_prctl
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0 &&
         (d & kAmxTile) != 0 && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Panels of a task. One row tile is bound by reading them. Several are staged anew by every task,
// which is to have many panels then, but all threads as many.
int64_t PanelsPerTask(int64_t panels, int64_t row_tiles, int64_t threads) {
  if (row_tiles == 1) {
    return std::clamp<int64_t>(panels / (threads * kTasksPerThread), 1, kTaskPanelsMax);
  }
  const int64_t most = std::min(kTaskPanelsMax, kTaskSums / (row_tiles * kRowTileSums));
  const auto time = [&](int64_t per_task) {
    return CeilDiv(CeilDiv(panels, per_task), threads) * (per_task + kStagingPanels);
  };
  int64_t best = 1;
  for (int64_t per_task = 2; per_task <= most; ++per_task) {
    if (time(per_task) < time(best)) best = per_task;
  }
  return best;
}

// Of `panels` panels from `panel` on.
void StoreSumsOf(const LinearArgs& args, int64_t panel, int64_t panels, int64_t first, int64_t rows,
                 Scratch& scratch) {
  const int64_t panel_sums = CeilDiv(rows, kTileRows) * kRowTileSums;
  for (int64_t row = 0; row < rows; row += kTileRows) {
    for (int64_t i = 0; i < panels; ++i) {
      const float* tiles = scratch.totals + i * panel_sums + row * kPanelWidth;
      for (int64_t line = 0; line < kRowTileSums / 16; ++line) {
        std::memcpy(scratch.rows + line % kTileRows * kPanelWidth + line / kTileRows * 16,
                    tiles + line * 16, 64);
      }
      StorePanelRows(PanelTaskOf(args, panel + i, first + row, std::min(kTileRows, rows - row)),
                     scratch.rows);
    }
  }
}

void RunChunk(const ExecutionContext& context, const LinearArgs& args, int64_t first,
              int64_t rows) {
  const LinearWeight::Packed& packed = args.weight->packed();
  const int64_t x_stride = args.x.stride * 2;
  const Activations x{static_cast<const std::byte*>(args.x.data) + first * x_stride, x_stride,
                      rows};
  const int64_t panels = PanelCount(packed.n);
  const int64_t panel_bytes = PanelElements(packed.dtype, packed.k) * 2;
  const int64_t per_task =
      PanelsPerTask(panels, CeilDiv(rows, kTileRows), context.parallel_for.threads);
  const int64_t threads = context.parallel_for.threads;
  const std::byte* weights = packed.weight.data();
  context.parallel_for(CeilDiv(panels, per_task), [&](int64_t index) {
    Scratch scratch;
    const int64_t begin = index * per_task;
    const int64_t after = begin + threads * per_task;
    const int64_t count = std::min(per_task, panels - begin);
    if (packed.k == 0) std::memset(scratch.totals, 0, sizeof(scratch.totals));
    RunPanels(weights + begin * panel_bytes, count, packed.k, x,
              after < panels ? weights + after * panel_bytes : nullptr, scratch);
    StoreSumsOf(args, begin, count, first, rows, scratch);
  });
}

}  // namespace

std::string LinearAmxBf16Unavailable(std::string* detail) {
  static const bool usable = MayUseTiles();
  if (detail != nullptr) *detail = "AMX-BF16";
  return usable ? "" : "the CPU has no AMX-BF16, or the system does not lend it";
}

absl::Status LinearAmxBf16(const ExecutionContext& context, const LinearArgs& args) {
  if (args.x.rows == 0) return absl::OkStatus();
  const int64_t chunks = CeilDiv(args.x.rows, kChunkRows);
  const int64_t rows = CeilDiv(CeilDiv(args.x.rows, chunks), kTileRows) * kTileRows;
  for (int64_t row = 0; row < args.x.rows; row += rows) {
    RunChunk(context, args, row, std::min(rows, args.x.rows - row));
  }
  return absl::OkStatus();
}

}  // namespace fuseblock

#else

namespace fuseblock {

std::string LinearAmxBf16Unavailable(std::string*) { return "not an x86-64 CPU on Linux"; }

absl::Status LinearAmxBf16(const ExecutionContext&, const LinearArgs&) {
  return absl::UnimplementedError("linear: AMX-BF16 is not there");
}

}  // namespace fuseblock

#endif
