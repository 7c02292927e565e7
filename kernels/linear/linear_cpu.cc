// The product on the CPU in FP32 arithmetic, for every dtype and every Highway target.
//
// Ladder: lanes over the panel's outputs with each activation broadcast (no sums across lanes, one
// stream of weights) -> up to 6 rows share a loaded weight in registers -> activations of a segment
// staged as FP32 (no strided walk, no conversion in the loop) -> for more rows than one tile, a
// half type's weights are widened once for each segment.
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

// Bytes ahead of the stream of weights that a single tile asks for. Tasks of more rows ask for the
// next segment while they work on this one.
constexpr int64_t kAheadBytes = 1024;

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

// Adds one segment to the totals of kRows rows and kVectors vectors of outputs. For BF16 the length
// is even: its last pair is filled up with a zero. kAheadSize: bytes of an element of the stream
// that `ahead` points into.
template <class T, int kAheadSize, int kRows, int kVectors>
HWY_INLINE void Tile(const T* HWY_RESTRICT w, int64_t length, const float* HWY_RESTRICT x,
                     const char* ahead, float* HWY_RESTRICT total) {
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
    HWY_UNROLL(8)
    for (int byte = 0; byte < 2 * kVectors * kLanes * kAheadSize; byte += 64) {
      hwy::Prefetch(ahead + k * kWidth * kAheadSize + byte);
    }
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
}

template <class T, int kAheadSize, int kRows>
HWY_NOINLINE void TileColumns(const T* w, int64_t length, const float* x, const char* ahead,
                              float* total) {
  constexpr int kVectors = TileVectors(kRows);
  for (int column = 0; column < kWidth; column += kVectors * kLanes) {
    Tile<T, kAheadSize, kRows, kVectors>(w + ColumnOffset<T>(column), length, x,
                                         ahead + 2 * column * kAheadSize, total + column);
  }
}

// One segment of all rows of a task.
template <class T, int kAheadSize>
void SegmentRows(const T* w, int64_t length, const float* x, int64_t rows, const char* ahead,
                 float* total) {
  using TileFunction = void (*)(const T*, int64_t, const float*, const char*, float*);
  static constexpr TileFunction kTiles[kTileRowsMax] = {
      TileColumns<T, kAheadSize, 1>, TileColumns<T, kAheadSize, 2>, TileColumns<T, kAheadSize, 3>,
      TileColumns<T, kAheadSize, 4>, TileColumns<T, kAheadSize, 5>, TileColumns<T, kAheadSize, 6>};
  for (int64_t row = 0; row < rows; row += kTileRowsMax) {
    const int64_t count = rows - row < kTileRowsMax ? rows - row : kTileRowsMax;
    kTiles[count - 1](w, length, x + row * kSegment, ahead, total + row * kWidth);
    ahead =
        reinterpret_cast<const char*>(w);  // asked for once; what is there costs next to nothing
  }
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

// The activations of a segment as FP32, kSegment apart; what a row lacks of `padded` is zero.
template <class T>
void Stage(const PanelTask& task, int64_t k, int64_t length, int64_t padded, float* out) {
  for (int64_t row = 0; row < task.rows; ++row) {
    const T* from = reinterpret_cast<const T*>(task.x + row * task.x_stride) + k;
    float* to = out + row * kSegment;
    if (length == kSegment) {
      HWY_UNROLL(8)
      for (int i = 0; i < kSegment; i += kLanes) Store(Load(from + i), to + i);
      continue;
    }
    Map(
        length, [](VF value) HWY_ATTR { return value; }, to, from);
    if (padded > length) to[length] = 0.0f;
  }
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

template <class T>
void RunTyped(const PanelTask& task) {
  constexpr bool kPairs = hwy::IsSame<T, BFloat16>();
  HWY_ALIGN float total[kTaskRowsMax * kPanelWidth];
  HWY_ALIGN float x[kTaskRowsMax * kSegment];
  HWY_ALIGN float wide[hwy::IsSame<T, float>() ? 1 : kSegment * kPanelWidth];
  memset(total, 0, static_cast<size_t>(task.rows * kPanelWidth) * sizeof(float));
  for (int64_t k = 0; k < task.k; k += kSegment) {
    const int64_t length = task.k - k < kSegment ? task.k - k : kSegment;
    const int64_t padded = kPairs ? length + length % 2 : length;
    Stage<T>(task, k, length, padded, x);
    const T* w = static_cast<const T*>(task.panel) + k * kPanelWidth;
    const char* next = reinterpret_cast<const char*>(w + kSegment * kPanelWidth);
    if (task.rows <= kTileRowsMax) {
      const char* ahead = reinterpret_cast<const char*>(w) + kAheadBytes;
      SegmentRows<T, sizeof(T)>(w, padded, x, task.rows, ahead, total);
    } else if constexpr (hwy::IsSame<T, float>()) {
      SegmentRows<float, sizeof(T)>(w, padded, x, task.rows, next, total);
    } else {
      Widen(w, padded, wide);
      SegmentRows<float, sizeof(T)>(wide, padded, x, task.rows, next, total);
    }
  }
  StoreTotals(task, total);
}

void RunTask(const PanelTask& task) {
  switch (task.dtype) {
    case DType::kF16:
      return RunTyped<Half>(task);
    case DType::kBF16:
      return RunTyped<BFloat16>(task);
    default:
      return RunTyped<float>(task);
  }
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(RunTask);
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
  RunPanelTasks(context, args, HWY_DYNAMIC_DISPATCH(RunTask));
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
