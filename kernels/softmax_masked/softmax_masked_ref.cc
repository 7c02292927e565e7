// Masked softmax in FP64, rounded once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/reference.h"
#include "kernels/softmax_masked/softmax_masked.h"

namespace fuseblock {

absl::Status SoftmaxMaskedReference(const ExecutionContext&, const SoftmaxMaskedArgs& args) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  std::vector<double> h(args.y.cols);
  for (int64_t row = 0; row < args.y.rows; ++row) {
    for (int64_t col = 0; col < args.y.cols; ++col) {
      h[col] = ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col);
      if (args.mask) {
        h[col] += ReadDouble(args.mask->data, args.mask_dtype, row * args.mask->stride + col);
      }
    }
    const bool empty = std::all_of(h.begin(), h.end(), [](double v) { return v == kNothing; });
    double max = kNothing, sum = 0;
    for (const double value : h) max = std::max(max, value);
    for (const double value : h) sum += std::exp(value - max);
    for (int64_t col = 0; col < args.y.cols; ++col) {
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col,
                  empty ? 0.0 : std::exp(h[col] - max) / sum);
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
