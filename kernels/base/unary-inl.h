// y = f(x) over rows of any dtypes, for one Highway target at a time (unary.h).
#include "kernels/base/map-inl.h"
#include "kernels/base/unary.h"

#if defined(FUSEBLOCK_KERNELS_BASE_UNARY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEBLOCK_KERNELS_BASE_UNARY_INL_H_
#undef FUSEBLOCK_KERNELS_BASE_UNARY_INL_H_
#else
#define FUSEBLOCK_KERNELS_BASE_UNARY_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {

// Function<Out>()(VF) is f, as accurate as an output of Out deserves.
template <class Out, class In, class Function>
void UnaryTyped(const UnaryArgs& args, const Function& function) {
  for (int64_t row = 0; row < args.y.rows; ++row) {
    Map(args.y.cols, function, static_cast<Out*>(args.y.data) + row * args.y.stride,
        static_cast<const In*>(args.x.data) + row * args.x.stride);
  }
}

template <template <class> class Function>
void UnaryRows(const UnaryArgs& args) {
  VisitFloats(args.y_dtype, args.x_dtype, [&](auto out, auto in) {
    using Out = decltype(out);
    UnaryTyped<Out, decltype(in)>(args, Function<Out>());
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#endif  // per target
