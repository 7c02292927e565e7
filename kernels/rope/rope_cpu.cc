// The rotary position embedding on the CPU: a token's cos and sin by vectors in FP64, kept as FP32
// for all its heads; the rotation in FP32.
#include <algorithm>

#include "kernels/base/split.h"
#include "kernels/rope/angle.h"
#include "kernels/rope/positions.h"
#include "kernels/rope/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope/rope_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/neighbours-inl.h"

namespace fuseblock {

// Pairs whose cos and sin are held at a time.
#ifndef FUSEBLOCK_ROPE_PAIRS
#define FUSEBLOCK_ROPE_PAIRS
constexpr int64_t kRopePairs = 1024;

// The heads of one token, from one of its pairs on.
struct RopeRun {
  const void* in;
  void* out;
  int64_t heads;
  int64_t in_stride, out_stride;  // elements between heads
};
#endif
}  // namespace fuseblock

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;
using DI64 = hn::RebindToSigned<DD>;

struct Turn {
  VD cosine, sine;
};

// See angle.h.
HWY_INLINE Turn TurnOf(VD angle) {
  const DD d;
  const DI64 di;
  const VD shift = hn::Set(d, kRoundToWhole);
  const VD shifted = hn::MulAdd(angle, hn::Set(d, kTwoOverPi), shift);
  const VD whole = hn::Sub(shifted, shift);
  VD r = hn::NegMulAdd(whole, hn::Set(d, kHalfPiHigh), angle);
  r = hn::NegMulAdd(whole, hn::Set(d, kHalfPiMiddle), r);
  r = hn::NegMulAdd(whole, hn::Set(d, kHalfPiLow), r);
  const VD square = hn::Mul(r, r);
  VD s = hn::MulAdd(hn::Set(d, kSin11), square, hn::Set(d, kSin9));
  s = hn::MulAdd(s, square, hn::Set(d, kSin7));
  s = hn::MulAdd(s, square, hn::Set(d, kSin5));
  s = hn::MulAdd(s, square, hn::Set(d, kSin3));
  s = hn::MulAdd(hn::Mul(r, square), s, r);
  VD c = hn::MulAdd(hn::Set(d, kCos10), square, hn::Set(d, kCos8));
  c = hn::MulAdd(c, square, hn::Set(d, kCos6));
  c = hn::MulAdd(c, square, hn::Set(d, kCos4));
  c = hn::MulAdd(c, square, hn::Set(d, kCos2));
  c = hn::MulAdd(c, square, hn::Set(d, 1.0));
  // Each quarter turn takes (cos, sin) to (-sin, cos).
  const auto quarter = hn::BitCast(di, shifted);
  const auto one = hn::Set(di, 1);
  const auto odd = hn::RebindMask(d, hn::Eq(hn::And(quarter, one), one));
  const auto sine_sign = hn::ShiftLeft<62>(hn::And(quarter, hn::Set(di, 2)));
  const auto cosine_sign = hn::ShiftLeft<62>(hn::And(hn::Add(quarter, one), hn::Set(di, 2)));
  return {hn::Xor(hn::IfThenElse(odd, s, c), hn::BitCast(d, cosine_sign)),
          hn::Xor(hn::IfThenElse(odd, c, s), hn::BitCast(d, sine_sign))};
}

// cos and sin of position * frequency, times `factor`, for `count` pairs, and of anything up to the
// end of the last vector.
HWY_INLINE void FillTurns(double position, double factor, const double* frequencies, int64_t count,
                          float* cosines, float* sines) {
  const DD d;
  const hn::Rebind<float, DD> df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const VD scale = hn::Set(d, factor);
  for (int64_t i = 0; i < count; i += lanes) {
    HWY_ALIGN double last[hn::MaxLanes(DD())] = {};
    const double* from = frequencies + i;
    if (i + lanes > count) {
      memcpy(last, from, static_cast<size_t>(count - i) * sizeof(double));
      from = last;
    }
    const Turn turn = TurnOf(hn::Mul(hn::Set(d, position), hn::LoadU(d, from)));
    hn::StoreU(hn::DemoteTo(df, hn::Mul(turn.cosine, scale)), df, cosines + i);
    hn::StoreU(hn::DemoteTo(df, hn::Mul(turn.sine, scale)), df, sines + i);
  }
}

HWY_INLINE VF TurnedFirst(VF a, VF b, VF cosine, VF sine) {
  return hn::MulSub(a, cosine, hn::Mul(b, sine));
}
HWY_INLINE VF TurnedSecond(VF a, VF b, VF cosine, VF sine) {
  return hn::MulAdd(b, cosine, hn::Mul(a, sine));
}

template <class T>
HWY_INLINE void TurnHalves(const T* a, const T* b, T* a_out, T* b_out, const float* cosines,
                           const float* sines, int64_t count) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VF x = Load(a + i), y = Load(b + i);
    const VF cosine = Load(cosines + i), sine = Load(sines + i);
    Store(TurnedFirst(x, y, cosine, sine), a_out + i);
    Store(TurnedSecond(x, y, cosine, sine), b_out + i);
  }
  if (i == count) return;
  const VF x = LoadTail(a + i, count - i), y = LoadTail(b + i, count - i);
  const VF cosine = Load(cosines + i), sine = Load(sines + i);
  StoreTail(TurnedFirst(x, y, cosine, sine), a_out + i, count - i);
  StoreTail(TurnedSecond(x, y, cosine, sine), b_out + i, count - i);
}

template <class T>
HWY_INLINE void TurnNeighbours(const T* in, T* out, const float* cosines, const float* sines,
                               int64_t count) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const auto turned = [&](const Neighbours& pair, int64_t i) HWY_ATTR {
    const VF cosine = Load(cosines + i), sine = Load(sines + i);
    return Neighbours{TurnedFirst(pair.even, pair.odd, cosine, sine),
                      TurnedSecond(pair.even, pair.odd, cosine, sine)};
  };
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    StoreNeighbours(turned(LoadNeighbours(in + 2 * i), i), out + 2 * i);
  }
  if (i == count) return;
  StoreNeighboursTail(turned(LoadNeighboursTail(in + 2 * i, count - i), i), out + 2 * i, count - i);
}

template <class T>
void TurnHeads(const RopeRun& run, RopePairs pairs, int64_t first, int64_t count, int64_t half,
               const float* cosines, const float* sines) {
  for (int64_t head = 0; head < run.heads; ++head) {
    const T* in = static_cast<const T*>(run.in) + head * run.in_stride;
    T* out = static_cast<T*>(run.out) + head * run.out_stride;
    if (pairs == RopePairs::kHalves) {
      TurnHalves(in + first, in + half + first, out + first, out + half + first, cosines, sines,
                 count);
    } else {
      TurnNeighbours(in + 2 * first, out + 2 * first, cosines, sines, count);
    }
  }
}

}  // namespace

// Turns pairs [first, first + count) of all heads of a token; count <= kRopePairs.
void TurnPairs(const RopeRun (&runs)[2], DType dtype, RopePairs pairs, double position,
               double factor, const double* frequencies, int64_t first, int64_t count,
               int64_t half) {
  HWY_ALIGN float cosines[kRopePairs + hn::MaxLanes(DF())];
  HWY_ALIGN float sines[kRopePairs + hn::MaxLanes(DF())];
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  // Whole vectors of FP32 are read back.
  for (int64_t i = count / lanes * lanes; i < count + lanes; ++i) cosines[i] = sines[i] = 0;
  FillTurns(position, factor, frequencies + first, count, cosines, sines);
  VisitFloat(dtype, [&](auto type) {
    for (const RopeRun& run : runs) {
      TurnHeads<decltype(type)>(run, pairs, first, count, half, cosines, sines);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {
namespace {

HWY_EXPORT(TurnPairs);

RopeRun RunOf(const RopeHeads& heads, DType dtype, int64_t token) {
  const int64_t size = SizeOf(dtype);
  return {static_cast<const std::byte*>(heads.in) + token * heads.in_token_stride * size,
          static_cast<std::byte*>(heads.out) + token * heads.out_token_stride * size, heads.heads,
          heads.in_head_stride, heads.out_head_stride};
}

// The columns that do not turn, where they are not in place already.
void CopyRest(const RopeRun& run, DType dtype, int64_t rotary_dims, int64_t head_dim) {
  if (run.in == run.out || rotary_dims == head_dim) return;
  const int64_t size = SizeOf(dtype);
  for (int64_t head = 0; head < run.heads; ++head) {
    std::memcpy(static_cast<std::byte*>(run.out) + (head * run.out_stride + rotary_dims) * size,
                static_cast<const std::byte*>(run.in) + (head * run.in_stride + rotary_dims) * size,
                static_cast<size_t>((head_dim - rotary_dims) * size));
  }
}

void RopeToken(const RopeArgs& args, int64_t token) {
  const int64_t rotary_dims = args.table->rotary_dims(), half = rotary_dims / 2;
  const double position = static_cast<double>(ReadPosition(args.positions, token));
  const RopeRun runs[2] = {RunOf(args.q, args.dtype, token), RunOf(args.k, args.dtype, token)};
  for (int64_t first = 0; first < half; first += kRopePairs) {
    HWY_DYNAMIC_DISPATCH(TurnPairs)
    (runs, args.dtype, args.pairs, position, args.table->attention_factor(), args.table->data(),
     first, std::min(kRopePairs, half - first), half);
  }
  for (const RopeRun& run : runs) CopyRest(run, args.dtype, rotary_dims, args.head_dim);
}

}  // namespace

absl::Status RopeHighway(const ExecutionContext& context, const RopeArgs& args) {
  const int64_t token_bytes =
      2 * (args.q.heads + args.k.heads) * args.head_dim * SizeOf(args.dtype);
  ForRanges(context.parallel_for, args.tokens, token_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) RopeToken(args, token);
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
