// SwiGLU's gate in FP64: rounded once, or with kHf also between silu and the product.
#include "kernels/base/reference.h"
#include "kernels/base/reference_math.h"
#include "kernels/swiglu/swiglu.h"

namespace fuseblock {

absl::Status SwiGluReference(const ExecutionContext&, const SwiGluArgs& args) {
  for (int64_t row = 0; row < args.y.rows; ++row) {
    for (int64_t col = 0; col < args.y.cols; ++col) {
      const double gate = ReadDouble(args.gate.data, args.in_dtype, row * args.gate.stride + col);
      const double up = ReadDouble(args.up.data, args.in_dtype, row * args.up.stride + col);
      const double silu = args.rounding == Rounding::kHf
                              ? RoundedTo(args.y_dtype, SiluEagerFp64(gate))
                              : SiluFp64(gate);
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col, silu * up);
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
