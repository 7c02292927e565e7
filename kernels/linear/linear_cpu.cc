// The product on the CPU in FP32 arithmetic, for every dtype and every Highway target.
//
// Ladder: lanes over the panel's outputs with each activation broadcast (no sums across lanes, one
// stream of weights) -> up to 6 rows share a loaded weight in registers -> activations of a segment
// staged as FP32 (no strided walk, no conversion in the loop) -> for more rows than one tile, a
// half type's weights are widened once for each segment -> a segment's tiles divide the asking for
// the next one among them (in the first tile alone it was more than the miss registers hold) ->
// activations are staged for several panels -> staging and storing go tile by tile, so that their
// memory moves while others multiply -> the next weights are asked for from four pages in turn, and
// into the L1 cache. One core of a Sapphire Rapids, which can read 21 GB/s, reads FP32 weights for
// 1, 4, 8 and 16 rows at 19.8, 20.2, 19.3 and 16.2 GB/s; asking for the pages one after the other,
// at 15.7, 16.3, 13.9 and 13.0.
//
// Four panels side by side, with all their sums in registers, are as fast for one row and slower
// for more, of which a step then takes only a part of each panel's outputs: 12 GB/s at 4 rows.
#include "hwy/cache_control.h"
#include "kernels/linear/linear_packed.h"
#include "kernels/linear/linear_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/linear_cpu.cc"
#include "hwy/foreach_target.h"
//
#include "kernels/base/gelu-inl.h"
#include "kernels/base/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kWidth = static_cast<int>(kPanelWidth);
constexpr int kPanelVectors = kWidth / kLanes;

// Activations of a task that are staged at a time: 256 KiB, which stay in the L2 cache.
constexpr int64_t kStagedValues = 512 * kTaskRowsMax;

// Vectors of a panel that a tile of that many rows sums at a time, for 32 registers of AVX-512 and
// 16 of the others.
constexpr int TileVectors(int rows) {
  const int most = HWY_MAX_BYTES >= 64 ? 4 : rows == 1 ? 8 : rows == 2 ? 4 : 2;
  return most < kPanelVectors ? most : kPanelVectors;
}

// The weights of step `k` of a panel for one vector of outputs, widened. `from` points at the
// vector in the panel's row of the step, for BF16 of its pair.
template <class T>
HWY_INLINE VF LoadStep(const T* from, bool second) {
  return Load(second ? from + kWidth : from);
}

HWY_INLINE VF LoadStep(const BFloat16* from, bool second) {
  const DU32 du;
  const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from));
  return hn::BitCast(DF(),
                     second ? hn::ShiftLeft<16>(pairs) : hn::And(pairs, hn::Set(du, 0xFFFF0000u)));
}

// Where column c of a panel lies in a row of steps.
template <class T>
constexpr int ColumnOffset(int column) {
  return hwy::IsSame<T, BFloat16>() ? 2 * column : column;
}

template <class T, int kRows, int kVectors>
HWY_INLINE void Step(const T* HWY_RESTRICT from, bool second, const float* HWY_RESTRICT x,
                     VF (&sum)[kRows][kVectors]) {
  VF w[kVectors];
  HWY_UNROLL(8)
  for (int v = 0; v < kVectors; ++v) w[v] = LoadStep(from + ColumnOffset<T>(v * kLanes), second);
  HWY_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    const VF a = hn::Set(DF(), x[r * kSegment]);
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(w[v], a, sum[r][v]);
  }
}

constexpr int64_t kLine = 64;  // of a cache, in bytes
constexpr int64_t kPage = 4096;
constexpr int64_t kWindowPages = 4;

// The window of weights that comes after the one in work, to be asked for while that is. The
// hardware fetches ahead within a page and starts anew with each: a core that reads page after page
// waits at every one. So the lines are asked for from all pages of the window in turn.
class Ahead {
 public:
  // passes: of a segment's steps, among which the window is divided.
  HWY_INLINE Ahead(const void* from, int64_t passes)
      : next_(static_cast<const char*>(from)), first_end_(next_ + kPage) {
    const int64_t pairs = passes * kSegment / 2;
    per_pair_ = (kWindowPages * kPage / kLine + pairs - 1) / pairs;
    window_end_ = next_ + kWindowPages * kPage;
  }
  HWY_INLINE void BeginPass() {
    if (next_ >= first_end_) per_pair_ = 0;
  }
  HWY_INLINE void Fetch() {
    for (int64_t line = 0; line < per_pair_; ++line) {
      __builtin_prefetch(next_);
      next_ += kPage;
      if (next_ >= window_end_) next_ += kLine - kWindowPages * kPage;
    }
  }

 private:
  const char* next_;
  const char* first_end_;  // of the window's first page
  const char* window_end_;
  int64_t per_pair_;  // lines in two steps
};

// Adds one segment to the totals of kRows rows and kVectors vectors of outputs. For BF16 the length
// is even: its last pair is filled up with a zero.
template <class T, int kRows, int kVectors>
HWY_INLINE void Tile(const T* HWY_RESTRICT w, int64_t length, const float* HWY_RESTRICT x,
                     Ahead& caller_ahead, float* HWY_RESTRICT total) {
  Ahead ahead = caller_ahead;  // in registers
  ahead.BeginPass();
  VF sum[kRows][kVectors];
  HWY_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(DF());
  }
  int64_t k = 0;
  for (; k + 2 <= length; k += 2) {
    const T* from = w + k * kWidth;
    Step<T, kRows, kVectors>(from, false, x + k, sum);
    Step<T, kRows, kVectors>(from, true, x + k + 1, sum);
    ahead.Fetch();
    // What the next rows' tile needs of the L2 cache.
    if (kRows == kTileRowsMax) hwy::Prefetch(total + kRows * kWidth + k * 8);
  }
  if (k < length) Step<T, kRows, kVectors>(w + k * kWidth, false, x + k, sum);
  HWY_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      float* t = total + r * kWidth + v * kLanes;
      Store(hn::Add(Load(t), sum[r][v]), t);
    }
  }
  caller_ahead = ahead;
}

template <class T, int kRows>
HWY_NOINLINE void TileColumns(const T* w, int64_t length, const float* x, Ahead& ahead,
                              float* total) {
  constexpr int kVectors = TileVectors(kRows);
  for (int column = 0; column < kWidth; column += kVectors * kLanes) {
    Tile<T, kRows, kVectors>(w + ColumnOffset<T>(column), length, x, ahead, total + column);
  }
}

// How often tiles of so many rows pass over a segment of a panel, or a little more.
HWY_INLINE int64_t Passes(int64_t rows) {
  static constexpr int kColumns[kTileRowsMax] = {
      kPanelVectors / TileVectors(1), kPanelVectors / TileVectors(2),
      kPanelVectors / TileVectors(3), kPanelVectors / TileVectors(4),
      kPanelVectors / TileVectors(5), kPanelVectors / TileVectors(6)};
  const int64_t tiles = (rows + kTileRowsMax - 1) / kTileRowsMax;
  return tiles * kColumns[(rows < kTileRowsMax ? rows : kTileRowsMax) - 1];
}

// A segment's weights as FP32 steps of 64.
template <class T>
void Widen(const T* w, int64_t length, float* HWY_RESTRICT out) {
  for (int64_t k = 0; k < length; k += 2) {
    for (int column = 0; column < kWidth; column += kLanes) {
      const T* from = w + k * kWidth + ColumnOffset<T>(column);
      float* to = out + k * kWidth + column;
      Store(LoadStep(from, false), to);
      if (k + 1 < length) Store(LoadStep(from, true), to + kWidth);
    }
  }
}

// One row's activations of a segment as FP32; what lacks of an even length is zero.
template <class T>
HWY_INLINE void StageSegment(const T* from, int64_t length, float* to) {
  if (length == kSegment) {
    HWY_UNROLL(8)
    for (int i = 0; i < kSegment; i += kLanes) Store(Load(from + i), to + i);
    return;
  }
  Map(
      length, [](VF value) HWY_ATTR { return value; }, to, from);
  if (length % 2 != 0) to[length] = 0.0f;
}

struct NoEpilogue {
  HWY_INLINE VF operator()(VF value) const { return value; }
};
template <class Y>
struct GeluErfEpilogue {
  HWY_INLINE VF operator()(VF value) const { return GeluErfOf<Y>(value); }
};
struct GeluTanhEpilogue {
  HWY_INLINE VF operator()(VF value) const { return GeluTanhOf(value); }
};

template <class Y, class Epilogue>
void StoreRows(const PanelTask& task, const float* total, const Epilogue& epilogue) {
  for (int64_t row = 0; row < task.rows; ++row) {
    Y* to = reinterpret_cast<Y*>(task.y + row * task.y_stride);
    for (int column = 0; column < task.columns; column += kLanes) {
      VF value = Load(total + row * kWidth + column);
      if (task.bias != nullptr) value = hn::Add(value, Load(task.bias + column));
      value = epilogue(value);
      const int64_t left = task.columns - column;
      if (left >= kLanes) {
        Store(value, to + column);
      } else {
        StoreTail(value, to + column, left);
      }
    }
  }
}

template <class Y>
void StoreRowsAs(const PanelTask& task, const float* total) {
  switch (task.epilogue) {
    case LinearEpilogue::kGeluErf:
      return StoreRows<Y>(task, total, GeluErfEpilogue<Y>());
    case LinearEpilogue::kGeluTanh:
      return StoreRows<Y>(task, total, GeluTanhEpilogue());
    default:
      return StoreRows<Y>(task, total, NoEpilogue());
  }
}

void StoreTotals(const PanelTask& task, const float* total) {
  switch (task.y_dtype) {
    case DType::kF16:
      return StoreRowsAs<Half>(task, total);
    case DType::kBF16:
      return StoreRowsAs<BFloat16>(task, total);
    default:
      return StoreRowsAs<float>(task, total);
  }
}

// A task's memory.
struct Scratch {
  HWY_ALIGN float x[kStagedValues];
  HWY_ALIGN float wide[kSegment * kPanelWidth];
  HWY_ALIGN float totals[kGroupPanelsMax * kTaskRowsMax * kPanelWidth];  // kWidth a row
};
static_assert(sizeof(Scratch) <= kLinearTaskStackBytes, "callers' threads have no more stack");

// A segment of K as a panel's tiles pass over it.
struct Segment {
  int64_t k, length;
  int64_t padded;  // for BF16 to whole pairs
  bool stages;     // the activations, which the group's other panels then find
  bool stores;     // the outputs: K ends here
};

// Some of a task's rows.
PanelTask RowsOf(PanelTask task, int64_t row, int64_t rows) {
  task.x += row * task.x_stride;
  task.y += row * task.y_stride;
  task.rows = rows;
  return task;
}

// The activations of a segment, a row after the other.
template <class T>
void Stage(const PanelTask& task, const Segment& segment, float* out) {
  for (int64_t row = 0; row < task.rows; ++row) {
    const T* from = reinterpret_cast<const T*>(task.x + row * task.x_stride) + segment.k;
    StageSegment(from, segment.length, out + row * kSegment);
  }
}

// Asks for a whole segment of activations.
template <class T>
void FetchActivations(const PanelTask& task, int64_t k) {
  for (int64_t row = 0; row < task.rows; ++row) {
    const T* from = reinterpret_cast<const T*>(task.x + row * task.x_stride) + k;
    for (int64_t i = 0; i < kSegment; i += kLine / static_cast<int64_t>(sizeof(T))) {
      hwy::Prefetch(from + i);
    }
  }
}

// One segment of a panel for all rows of a task, whose activations are T; tile by tile, so that
// what comes and goes by memory does so while others multiply.
template <class T, class W>
void SegmentRows(const PanelTask& task, const Segment& segment, const W* w, Ahead& ahead, float* x,
                 float* total) {
  using TileFunction = void (*)(const W*, int64_t, const float*, Ahead&, float*);
  static constexpr TileFunction kTiles[kTileRowsMax] = {TileColumns<W, 1>, TileColumns<W, 2>,
                                                        TileColumns<W, 3>, TileColumns<W, 4>,
                                                        TileColumns<W, 5>, TileColumns<W, 6>};
  const auto count_from = [&](int64_t row) HWY_ATTR {
    return task.rows - row < kTileRowsMax ? task.rows - row : kTileRowsMax;
  };
  for (int64_t row = 0; row < task.rows; row += kTileRowsMax) {
    const PanelTask tile = RowsOf(task, row, count_from(row));
    if (segment.stages) {
      const int64_t after = row + tile.rows;
      if (after < task.rows) FetchActivations<T>(RowsOf(task, after, count_from(after)), segment.k);
      Stage<T>(tile, segment, x + row * kSegment);
    }
    kTiles[tile.rows - 1](w, segment.padded, x + row * kSegment, ahead, total + row * kWidth);
    if (segment.stores) StoreTotals(tile, total + row * kWidth);
  }
}

// One segment of one panel.
template <class T>
void RunSegment(const PanelTask& task, const Segment& segment, Ahead& ahead, float* x, float* wide,
                float* total) {
  const T* w = static_cast<const T*>(task.panel) + segment.k * kWidth;
  if (hwy::IsSame<T, float>() || task.rows <= kTileRowsMax) {
    SegmentRows<T>(task, segment, w, ahead, x, total);
  } else {
    Widen(w, segment.padded, wide);
    SegmentRows<T, float>(task, segment, wide, ahead, x, total);
  }
}

// Steps [begin, end) of one panel, window by window; `next`: the weights that follow.
template <class T>
void RunBlock(const PanelTask& task, int64_t begin, int64_t end, bool stages, const T* next,
              Scratch& scratch, float* total) {
  constexpr int64_t kWindowSegments =
      kWindowPages * kPage / (kSegment * kWidth * static_cast<int64_t>(sizeof(T)));
  const T* w = static_cast<const T*>(task.panel);
  int64_t k = begin;
  while (k < end) {
    const int64_t after = HWY_MIN(end, k + kWindowSegments * kSegment);
    const int64_t segments = (after - k + kSegment - 1) / kSegment;
    Ahead ahead(after < end ? w + after * kWidth : next, Passes(task.rows) * segments);
    for (; k < after; k += kSegment) {
      const int64_t length = HWY_MIN(after - k, kSegment);
      const int64_t padded = hwy::IsSame<T, BFloat16>() ? length + length % 2 : length;
      const Segment segment = {k, length, padded, stages, k + length == task.k};
      RunSegment<T>(task, segment, ahead, scratch.x + (k - begin) * task.rows, scratch.wide, total);
    }
  }
}

// A task: block by block of K, whose activations the first panel's tiles stage for the others,
// which find them in the L2 cache; in a block panel by panel, of whose segments each stays in the
// L1 cache while the rows pass.
template <class T>
void RunTyped(const LinearArgs& args, const PanelGroup& group) {
  Scratch scratch;
  const int64_t values = group.rows * kWidth;
  const int64_t block = kStagedValues / (group.rows * kSegment) * kSegment;
  const auto task_of = [&](int64_t panel) HWY_ATTR {
    return PanelTaskOf(args, group.panel + panel, group.row, group.rows);
  };
  memset(scratch.totals, 0, static_cast<size_t>(group.panels * values) * sizeof(float));
  const int64_t all = task_of(0).k;
  for (int64_t begin = 0; begin < all; begin += block) {
    const int64_t end = all - begin < block ? all : begin + block;
    for (int64_t panel = 0; panel < group.panels; ++panel) {
      const PanelTask task = task_of(panel);
      const T* w = static_cast<const T*>(task.panel);
      const T* next = panel + 1 < group.panels ? w + task.panel_elements + begin * kWidth
                                               : w - panel * task.panel_elements + end * kWidth;
      RunBlock(task, begin, end, panel == 0, next, scratch, scratch.totals + panel * values);
    }
  }
  if (all > 0) return;
  for (int64_t panel = 0; panel < group.panels; ++panel) {
    StoreTotals(task_of(panel), scratch.totals);
  }
}

void RunGroup(const LinearArgs& args, const PanelGroup& group) {
  switch (PanelTaskOf(args, group.panel, group.row, group.rows).dtype) {
    case DType::kF16:
      return RunTyped<Half>(args, group);
    case DType::kBF16:
      return RunTyped<BFloat16>(args, group);
    default:
      return RunTyped<float>(args, group);
  }
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(RunGroup);
HWY_EXPORT(StoreTotals);
HWY_EXPORT(Target);

std::string LinearHighwayUnavailable(std::string* detail) {
  if (detail != nullptr) *detail = HWY_DYNAMIC_DISPATCH(Target)();
  return "";
}

void StorePanelRows(const PanelTask& task, const float* total) {
  HWY_DYNAMIC_DISPATCH(StoreTotals)(task, total);
}

absl::Status LinearHighway(const ExecutionContext& context, const LinearArgs& args) {
  RunPanelGroups(context, args, HWY_DYNAMIC_DISPATCH(RunGroup));
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
