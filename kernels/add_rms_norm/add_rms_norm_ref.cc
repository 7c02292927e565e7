// The addition and RMSNorm in FP64: rounded once per output, with kHf also between the two, and
// with kNormalisedFirst also before the weight.
#include <cmath>
#include <vector>

#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/base/reference.h"

namespace fuseblock {

absl::Status AddRmsNormReference(const ExecutionContext&, const AddRmsNormArgs& args) {
  const int64_t columns = args.y.cols;
  std::vector<double> h(columns);  // the outputs may overwrite the inputs
  for (int64_t row = 0; row < args.y.rows; ++row) {
    double sum = 0;
    for (int64_t col = 0; col < columns; ++col) {
      h[col] = ReadDouble(args.x.data, args.dtype, row * args.x.stride + col) +
               ReadDouble(args.r.data, args.dtype, row * args.r.stride + col);
      if (args.sum == Rounding::kHf) h[col] = RoundedTo(args.dtype, h[col]);
      sum += h[col] * h[col];
    }
    const double root = std::sqrt(sum / static_cast<double>(columns) + args.params.eps);
    for (int64_t col = 0; col < columns; ++col) {
      double n = h[col] / root;
      if (args.params.form == RmsNormForm::kNormalisedFirst) n = RoundedTo(args.dtype, n);
      const double w = args.weight == nullptr ? 1.0
                                              : ReadDouble(args.weight, args.weight_dtype, col) +
                                                    args.params.weight_offset;
      WriteDouble(args.y.data, args.dtype, row * args.y.stride + col, n * w);
      if (args.residual_out) {
        WriteDouble(args.residual_out->data, args.residual_out_dtype,
                    row * args.residual_out->stride + col, h[col]);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
