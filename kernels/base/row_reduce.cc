#include "kernels/base/row_reduce.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_join.h"
#include "kernels/base/reference.h"
#include "kernels/base/status.h"

namespace fuseblock {

absl::StatusOr<RowReduceArgs> CheckRowReduce(ReduceOp op, const ConstTensorView& x,
                                             const TensorView& y) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat("x", x));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("y", y, x.dtype));
  RowReduceArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(args.x, AsRows("x", x));
  std::vector<int64_t> expected(x.dims().begin(), x.dims().end());
  expected.back() = 1;
  if (y.dims() != absl::MakeConstSpan(expected)) {
    return absl::InvalidArgumentError(absl::StrCat("y: expected x's shape with a last axis of 1, [",
                                                   absl::StrJoin(expected, ", "), "], got [",
                                                   absl::StrJoin(y.dims(), ", "), "]"));
  }
  FUSEBLOCK_ASSIGN_OR_RETURN(args.y, AsRows("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckApart("y", y, "x", x));
  args.op = op;
  args.x_dtype = x.dtype;
  args.y_dtype = y.dtype;
  return args;
}

absl::Status RunRowReduce(const char* kernel, absl::Span<const Implementation<RowReduceArgs>> list,
                          const ExecutionContext& context, ReduceOp op, const ConstTensorView& x,
                          const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const RowReduceArgs args, CheckRowReduce(op, x, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kernel, list, context, args);
}

int LaunchRowReduce(FuseblockRowReduce* launch, const RowReduceArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.x_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&x, args.op == ReduceOp::kMax, &y, stream);
}

absl::Status RowReduceReference(const ExecutionContext&, const RowReduceArgs& args) {
  const bool max = args.op == ReduceOp::kMax;
  for (int64_t row = 0; row < args.x.rows; ++row) {
    double result = max ? -std::numeric_limits<double>::infinity() : 0.0;
    for (int64_t col = 0; col < args.x.cols; ++col) {
      const double x = ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col);
      if (!max) {
        result += x;
      } else if (x > result || std::isnan(x)) {
        result = x;  // nothing is larger than a NaN
      }
    }
    WriteDouble(args.y.data, args.y_dtype, row * args.y.stride, result);
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
