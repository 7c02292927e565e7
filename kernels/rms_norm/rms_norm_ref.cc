// RMSNorm in FP64: rounded once, or with kNormalisedFirst also before the weight.
#include <cmath>

#include "kernels/base/reference.h"
#include "kernels/rms_norm/rms_norm.h"

namespace fuseblock {

absl::Status RmsNormReference(const ExecutionContext&, const RmsNormArgs& args) {
  const int64_t columns = args.y.cols;
  for (int64_t row = 0; row < args.y.rows; ++row) {
    double sum = 0;
    for (int64_t col = 0; col < columns; ++col) {
      const double x = ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col);
      sum += x * x;
    }
    const double root = std::sqrt(sum / static_cast<double>(columns) + args.params.eps);
    for (int64_t col = 0; col < columns; ++col) {
      double n = ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col) / root;
      if (args.params.form == RmsNormForm::kNormalisedFirst) n = RoundedTo(args.y_dtype, n);
      const double w = args.weight == nullptr ? 1.0
                                              : ReadDouble(args.weight, args.weight_dtype, col) +
                                                    args.params.weight_offset;
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col, n * w);
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
