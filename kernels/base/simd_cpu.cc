// Which of the instruction sets that the vector kernels were built for this machine uses, and what
// such kernels need on their way in.
#include <algorithm>

#include "kernels/base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/base/simd_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

int64_t ThisTarget() { return HWY_TARGET; }

void Widen(const void* from, DType dtype, float addend, int64_t count, float* to) {
  VisitFloat(dtype, [&](auto type) {
    const VF added = hn::Set(DF(), addend);
    Map(
        count, [&](VF value) { return hn::Add(value, added); }, to,
        static_cast<const decltype(type)*>(from));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(ThisTarget);
HWY_EXPORT(Widen);

std::string SimdTarget() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(ThisTarget)()); }

std::string HighwayUnavailable(std::string* detail) {
  if (detail != nullptr) *detail = SimdTarget();
  return "";
}

FloatVector::FloatVector(const void* data, DType dtype, float addend, int64_t count, float absent)
    : data_(static_cast<const float*>(data)) {
  if (data != nullptr && dtype == DType::kF32 && addend == 0) return;
  float* copy = in_place_;
  if (count > kInPlace) {
    longer_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count));
    copy = longer_.get();
  }
  if (data == nullptr) {
    std::fill_n(copy, count, absent);
  } else {
    HWY_DYNAMIC_DISPATCH(Widen)(data, dtype, addend, count, copy);
  }
  data_ = copy;
}

}  // namespace fuseblock
#endif  // HWY_ONCE
