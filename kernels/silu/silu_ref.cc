// SiLU in FP64, rounded once.
#include "kernels/base/reference.h"
#include "kernels/base/reference_math.h"
#include "kernels/silu/silu.h"

namespace fuseblock {

absl::Status SiluReference(const ExecutionContext&, const SiluArgs& args) {
  for (int64_t row = 0; row < args.y.rows; ++row) {
    for (int64_t col = 0; col < args.y.cols; ++col) {
      const double x = ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col);
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col, SiluFp64(x));
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
