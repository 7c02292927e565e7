// A function of each element of rows that lie in memory, for one Highway target at a time.
#include "kernels/base/neighbours-inl.h"

#if defined(FUSEBLOCK_KERNELS_BASE_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_MAP_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_MAP_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_MAP_INL_H_
#endif

#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

// Elements between what is computed and what is fetched for later: enough for the time that memory
// takes. A function's instructions fill the window in which the processor would find the next loads
// by itself.
constexpr int64_t kFetchAhead = 512;

template <class T>
HWY_INLINE void FetchLine(const T* from) {
  hwy::Prefetch(from);
  asm volatile("");  // else GCC drops the calls of a function that does nothing but this
}

// Two vectors' worth, for reading or for writing.
template <class T>
HWY_INLINE void Fetch(const T* from) {
  constexpr int64_t kLine = 64;
  const int64_t bytes = static_cast<int64_t>(2 * hn::Lanes(DF()) * sizeof(T));
  for (int64_t i = 0; i < bytes; i += kLine) {
    FetchLine(reinterpret_cast<const char*>(from) + i);
  }
}

// out = f(in...) for two vectors of each. Where all are BF16 the even and the odd elements are the
// two: their bits are half of each 32-bit lane, and nothing has to cross lanes.
template <class Out, class F, class... In>
HWY_INLINE void MapPair(const F& f, Out* out, const In*... in) {
  if constexpr (hwy::IsSame<Out, BFloat16>() && (hwy::IsSame<In, BFloat16>() && ...)) {
    const auto apply = [&](const auto&... pair) {
      return Neighbours{f(pair.even...), f(pair.odd...)};
    };
    StoreNeighbours(apply(LoadNeighbours(in)...), out);
  } else {
    const VF first = f(Load(in)...);
    StorePair(first, f(Load(in + hn::Lanes(DF()))...), out);
  }
}

// out[i] = f(in[i]...) for count elements; out may be one of the inputs. kAhead: 0 where f is too
// short to be in the way of the next loads, or its caller sees to them.
template <int64_t kAhead = kFetchAhead, class Out, class F, class... In>
HWY_INLINE void Map(int64_t count, const F& f, Out* out, const In*... in) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const int64_t last = count - 2 * lanes - kAhead;
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    if (kAhead > 0 && i <= last) {
      Fetch(out + i + kAhead);
      (Fetch(in + i + kAhead), ...);
    }
    MapPair(f, out + i, in + i...);
  }
  if (i + lanes <= count) {
    Store(f(Load(in + i)...), out + i);
    i += lanes;
  }
  if (i < count) StoreTail(f(LoadTail(in + i, count - i)...), out + i, count - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
