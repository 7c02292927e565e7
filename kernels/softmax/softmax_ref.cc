// Softmax in FP64, rounded once.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/reference.h"
#include "kernels/softmax/softmax.h"

namespace fuseblock {

absl::Status SoftmaxReference(const ExecutionContext&, const UnaryArgs& args) {
  for (int64_t row = 0; row < args.y.rows; ++row) {
    const auto x = [&](int64_t col) {
      return ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col);
    };
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t col = 0; col < args.y.cols; ++col) max = std::max(max, x(col));
    // A NaN is not in the maximum, but it is in the sum.
    for (int64_t col = 0; col < args.y.cols; ++col) sum += std::exp(x(col) - max);
    for (int64_t col = 0; col < args.y.cols; ++col) {
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col,
                  std::exp(x(col) - max) / sum);
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
