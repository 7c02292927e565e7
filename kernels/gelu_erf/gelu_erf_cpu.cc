// GELU, erf form, on the CPU, FP32 inside, vectorised for the machine at run time.
#include "kernels/gelu_erf/gelu_erf.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gelu_erf/gelu_erf_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/gelu-inl.h"
#include "kernels/base/unary-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

template <class Out>
struct GeluErfFunction {
  HWY_INLINE VF operator()(VF x) const { return GeluErfOf<Out>(x); }
};

}  // namespace

void GeluErfRows(const UnaryArgs& args) { UnaryRows<GeluErfFunction>(args); }

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(GeluErfRows);

absl::Status GeluErfHighway(const ExecutionContext& context, const UnaryArgs& args) {
  return UnaryInParts(context, args, [](const UnaryArgs& part) {
    HWY_DYNAMIC_DISPATCH(GeluErfRows)(part);
  });
}

}  // namespace fuseblock
#endif  // HWY_ONCE
