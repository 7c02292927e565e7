#include "kernels/base/unary.h"

#include <utility>

#include "kernels/base/split.h"
#include "kernels/base/status.h"

namespace fuseblock {

absl::StatusOr<UnaryArgs> CheckUnary(const ConstTensorView& x, const TensorView& y) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("x", x, y.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", x, "y", y));
  UnaryArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(args.x, AsRows("x", x));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.y, AsRows("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", y, "x", x));
  args.x_dtype = x.dtype;
  args.y_dtype = y.dtype;
  return args;
}

absl::Status RunUnary(const char* kernel, absl::Span<const Implementation<UnaryArgs>> list,
                      const ExecutionContext& context, const ConstTensorView& x,
                      const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const UnaryArgs args, CheckUnary(x, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kernel, list, context, args);
}

int LaunchUnary(FuseblockUnary* launch, const UnaryArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.x_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&x, &y, stream);
}

absl::Status UnaryInParts(const ExecutionContext& context, const UnaryArgs& args,
                          absl::FunctionRef<void(const UnaryArgs&)> rows) {
  ForElements(context.parallel_for, args, ComputedBytes(2), rows,
              std::pair(&UnaryArgs::y, &UnaryArgs::y_dtype),
              std::pair(&UnaryArgs::x, &UnaryArgs::x_dtype));
  return absl::OkStatus();
}

}  // namespace fuseblock
