// The residual addition on the CPU, FP32 inside, vectorised for the machine at run time.
#include <utility>

#include "kernels/add_residual/add_residual.h"
#include "kernels/base/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/add_residual/add_residual_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

struct AddFunction {
  HWY_INLINE VF operator()(VF x, VF r) const { return hn::Add(x, r); }
};

template <class Z, class X, class R>
void AddTyped(const AddResidualArgs& args) {
  for (int64_t row = 0; row < args.z.rows; ++row) {
    Map<0>(args.z.cols, AddFunction(), static_cast<Z*>(args.z.data) + row * args.z.stride,
           static_cast<const X*>(args.x.data) + row * args.x.stride,
           static_cast<const R*>(args.r.data) + row * args.r.stride);
  }
}

}  // namespace

void AddResidualRows(const AddResidualArgs& args) {
  VisitFloat(args.z_dtype, [&](auto out) {
    using Z = decltype(out);
    const bool x_same = args.x_dtype == args.z_dtype;
    const bool r_same = args.r_dtype == args.z_dtype;
    if (x_same) {
      r_same ? AddTyped<Z, Z, Z>(args) : AddTyped<Z, Z, float>(args);
    } else {
      r_same ? AddTyped<Z, float, Z>(args) : AddTyped<Z, float, float>(args);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(AddResidualRows);

absl::Status AddResidualHighway(const ExecutionContext& context, const AddResidualArgs& args) {
  const int64_t element_bytes = SizeOf(args.x_dtype) + SizeOf(args.r_dtype) + SizeOf(args.z_dtype);
  ForElements(context.parallel_for, args, element_bytes, HWY_DYNAMIC_DISPATCH(AddResidualRows),
              std::pair(&AddResidualArgs::z, &AddResidualArgs::z_dtype),
              std::pair(&AddResidualArgs::x, &AddResidualArgs::x_dtype),
              std::pair(&AddResidualArgs::r, &AddResidualArgs::r_dtype));
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
