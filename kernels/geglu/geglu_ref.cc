// GeGLU's gate in FP64: rounded once, or with kHf also between gelu and the product.
#include "kernels/base/reference.h"
#include "kernels/base/reference_math.h"
#include "kernels/geglu/geglu.h"

namespace fuseblock {

absl::Status GeGluReference(const ExecutionContext&, const GeGluArgs& args) {
  const auto gelu_of = args.form == GeluForm::kErf ? GeluErfFp64 : GeluTanhFp64;
  for (int64_t row = 0; row < args.y.rows; ++row) {
    for (int64_t col = 0; col < args.y.cols; ++col) {
      const double gate = ReadDouble(args.gate.data, args.in_dtype, row * args.gate.stride + col);
      const double up = ReadDouble(args.up.data, args.in_dtype, row * args.up.stride + col);
      double gelu = gelu_of(gate);
      if (args.rounding == Rounding::kHf) gelu = RoundedTo(args.y_dtype, gelu);
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col, gelu * up);
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
