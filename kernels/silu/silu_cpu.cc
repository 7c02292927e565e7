// SiLU on the CPU, FP32 inside, vectorised for the machine at run time.
#include "kernels/base/split.h"
#include "kernels/silu/silu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/silu/silu_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/silu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

struct SiluFunction {
  HWY_INLINE VF operator()(VF x) const { return SiluOf(x); }
};

template <class Out, class In>
void SiluTyped(const SiluArgs& args) {
  for (int64_t row = 0; row < args.y.rows; ++row) {
    Map(args.y.cols, SiluFunction(), static_cast<Out*>(args.y.data) + row * args.y.stride,
        static_cast<const In*>(args.x.data) + row * args.x.stride);
  }
}

}  // namespace

void SiluRows(const SiluArgs& args) {
  VisitFloat(args.y_dtype, [&](auto out) {
    using Out = decltype(out);
    if (args.x_dtype == args.y_dtype) {
      SiluTyped<Out, Out>(args);
    } else {
      SiluTyped<Out, float>(args);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(SiluRows);

absl::Status SiluHighway(const ExecutionContext& context, const SiluArgs& args) {
  const auto split = ElementSplit::Of(args.y, args.x);
  const int64_t element_bytes = SizeOf(args.x_dtype) + SizeOf(args.y_dtype);
  ForRanges(context.parallel_for, split.units(), split.unit_elements() * element_bytes,
            [&](int64_t begin, int64_t end) {
              SiluArgs part = args;
              part.x = split.Part(args.x, args.x_dtype, begin, end);
              part.y = split.Part(args.y, args.y_dtype, begin, end);
              HWY_DYNAMIC_DISPATCH(SiluRows)(part);
            });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
