// What the kernels y = f(x) have in common: arguments, checks, and threads where f takes each
// element on its own. Such an element-wise kernel is its formula three times (FP64, Highway, CUDA)
// and a list of the three.
#pragma once

#include "absl/functional/function_ref.h"
#include "kernels/base/implementation.h"
#include "kernels/base/reference.h"
#include "kernels/base/unary_cuda.h"

namespace fuseblock {

struct UnaryArgs {
  ConstRows x;
  Rows y;
  DType x_dtype, y_dtype;
};

// x, y: the same shape, any rank >= 1, last axis contiguous, leading axes collapsible to rows. y:
// FP32, FP16 or BF16; x: y's dtype or FP32. y may be x when the dtypes agree, else they lie apart.
absl::StatusOr<UnaryArgs> CheckUnary(const ConstTensorView& x, const TensorView& y);

// Checks, then runs the first implementation that has no objection. Zero elements: OK.
absl::Status RunUnary(const char* kernel, absl::Span<const Implementation<UnaryArgs>> list,
                      const ExecutionContext& context, const ConstTensorView& x,
                      const TensorView& y);

int LaunchUnary(FuseblockUnary* launch, const UnaryArgs& args, void* stream);

// Cuts the elements among the caller's threads; `rows` computes a part.
absl::Status UnaryInParts(const ExecutionContext& context, const UnaryArgs& args,
                          absl::FunctionRef<void(const UnaryArgs&)> rows);

// f in FP64, rounded once.
template <double (*kFunction)(double)>
absl::Status UnaryReference(const ExecutionContext&, const UnaryArgs& args) {
  for (int64_t row = 0; row < args.y.rows; ++row) {
    for (int64_t col = 0; col < args.y.cols; ++col) {
      const double x = ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col);
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col, kFunction(x));
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
