// SwiGLU's gate on the CPU, FP32 inside, vectorised for the machine at run time.
#include <utility>

#include "kernels/base/split.h"
#include "kernels/swiglu/swiglu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu/swiglu_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/map-inl.h"
#include "kernels/base/silu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

template <class Out>
struct FusedFunction {
  HWY_INLINE VF operator()(VF gate, VF up) const { return SiluTimes<Out>(gate, up); }
};

template <class Out>
struct HfFunction {
  HWY_INLINE VF operator()(VF gate, VF up) const {
    return hn::Mul(RoundedTo<Out>(SiluEagerOf(gate)), up);
  }
};

template <class Out, class In, class Function>
void SwiGluTyped(const SwiGluArgs& args, const Function& function) {
  for (int64_t row = 0; row < args.y.rows; ++row) {
    Map(args.y.cols, function, static_cast<Out*>(args.y.data) + row * args.y.stride,
        static_cast<const In*>(args.gate.data) + row * args.gate.stride,
        static_cast<const In*>(args.up.data) + row * args.up.stride);
  }
}

}  // namespace

void SwiGluRows(const SwiGluArgs& args) {
  VisitFloat(args.y_dtype, [&](auto out) {
    using Out = decltype(out);
    if (args.rounding == Rounding::kHf) {
      SwiGluTyped<Out, Out>(args, HfFunction<Out>());
    } else if (args.in_dtype == args.y_dtype) {
      SwiGluTyped<Out, Out>(args, FusedFunction<Out>());
    } else {
      SwiGluTyped<Out, float>(args, FusedFunction<Out>());
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(SwiGluRows);

absl::Status SwiGluHighway(const ExecutionContext& context, const SwiGluArgs& args) {
  ForElements(context.parallel_for, args, ComputedBytes(3), HWY_DYNAMIC_DISPATCH(SwiGluRows),
              std::pair(&SwiGluArgs::y, &SwiGluArgs::y_dtype),
              std::pair(&SwiGluArgs::gate, &SwiGluArgs::in_dtype),
              std::pair(&SwiGluArgs::up, &SwiGluArgs::in_dtype));
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
