// Which of the instruction sets that the vector kernels were built for this machine uses.
#include "kernels/base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/base/simd_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

int64_t ThisTarget() { return HWY_TARGET; }

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(ThisTarget);

std::string SimdTarget() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(ThisTarget)()); }

std::string HighwayUnavailable(std::string* detail) {
  if (detail != nullptr) *detail = SimdTarget();
  return "";
}

}  // namespace fuseblock
#endif  // HWY_ONCE
