// The residual addition in FP64, rounded once.
#include "kernels/add_residual/add_residual.h"
#include "kernels/base/reference.h"

namespace fuseblock {

absl::Status AddResidualReference(const ExecutionContext&, const AddResidualArgs& args) {
  for (int64_t row = 0; row < args.z.rows; ++row) {
    for (int64_t col = 0; col < args.z.cols; ++col) {
      const double x = ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col);
      const double r = ReadDouble(args.r.data, args.r_dtype, row * args.r.stride + col);
      WriteDouble(args.z.data, args.z_dtype, row * args.z.stride + col, x + r);
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
