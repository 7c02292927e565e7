// GeGLU's gate on the CPU, FP32 inside, vectorised for the machine at run time.
#include <utility>

#include "kernels/base/split.h"
#include "kernels/geglu/geglu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/geglu/geglu_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/gelu-inl.h"
#include "kernels/base/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

struct Erf {
  using Tail = GeluErfTail;
  template <class Out>
  static HWY_INLINE VF Of(VF x) {
    return GeluErfOf<Out>(x);
  }
};

struct Tanh {
  using Tail = GeluTanhTail;
  template <class Out>
  static HWY_INLINE VF Of(VF x) {
    return GeluTanhOf(x);
  }
};

template <class Out, class Form>
struct FusedFunction {
  HWY_INLINE VF operator()(VF gate, VF up) const {
    return GeluTimes(typename Form::Tail(), gate, Form::template Of<Out>(gate), up);
  }
};

template <class Out, class Form>
struct HfFunction {
  HWY_INLINE VF operator()(VF gate, VF up) const {
    return hn::Mul(RoundedTo<Out>(Form::template Of<Out>(gate)), up);
  }
};

template <class Out, class In, class Function>
void GeGluTyped(const GeGluArgs& args, const Function& function) {
  for (int64_t row = 0; row < args.y.rows; ++row) {
    Map(args.y.cols, function, static_cast<Out*>(args.y.data) + row * args.y.stride,
        static_cast<const In*>(args.gate.data) + row * args.gate.stride,
        static_cast<const In*>(args.up.data) + row * args.up.stride);
  }
}

template <class Form>
void GeGluOf(const GeGluArgs& args) {
  VisitFloat(args.y_dtype, [&](auto out) {
    using Out = decltype(out);
    if (args.rounding == Rounding::kHf) {
      GeGluTyped<Out, Out>(args, HfFunction<Out, Form>());
    } else if (args.in_dtype == args.y_dtype) {
      GeGluTyped<Out, Out>(args, FusedFunction<Out, Form>());
    } else {
      GeGluTyped<Out, float>(args, FusedFunction<Out, Form>());
    }
  });
}

}  // namespace

void GeGluRows(const GeGluArgs& args) {
  args.form == GeluForm::kErf ? GeGluOf<Erf>(args) : GeGluOf<Tanh>(args);
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(GeGluRows);

absl::Status GeGluHighway(const ExecutionContext& context, const GeGluArgs& args) {
  ForElements(context.parallel_for, args, ComputedBytes(3), HWY_DYNAMIC_DISPATCH(GeGluRows),
              std::pair(&GeGluArgs::y, &GeGluArgs::y_dtype),
              std::pair(&GeGluArgs::gate, &GeGluArgs::in_dtype),
              std::pair(&GeGluArgs::up, &GeGluArgs::in_dtype));
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
