// SiLU on the CPU, FP32 inside, vectorised for the machine at run time.
#include "kernels/silu/silu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/silu/silu_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/silu-inl.h"
#include "kernels/base/unary-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

template <class Out>
struct SiluFunction {
  HWY_INLINE VF operator()(VF x) const { return SiluOf<Out>(x); }
};

}  // namespace

void SiluRows(const UnaryArgs& args) { UnaryRows<SiluFunction>(args); }

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(SiluRows);

absl::Status SiluHighway(const ExecutionContext& context, const UnaryArgs& args) {
  return UnaryInParts(context, args, [](const UnaryArgs& part) {
    HWY_DYNAMIC_DISPATCH(SiluRows)(part);
  });
}

}  // namespace fuseblock
#endif  // HWY_ONCE
