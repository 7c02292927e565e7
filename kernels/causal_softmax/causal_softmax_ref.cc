// The causal softmax in FP64, rounded once.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/causal.h"
#include "kernels/base/reference.h"
#include "kernels/causal_softmax/causal_softmax.h"

namespace fuseblock {

absl::Status CausalSoftmaxReference(const ExecutionContext&, const CausalSoftmaxArgs& args) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  for (int64_t row = 0; row < args.y.rows; ++row) {
    const int64_t kept = CausalKept(row % args.queries, args.queries, args.y.cols);
    const auto x = [&](int64_t col) {
      const double value = ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col);
      return value * static_cast<double>(args.scale);
    };
    double max = kNothing, sum = 0;
    for (int64_t col = 0; col < kept; ++col) max = std::max(max, x(col));
    if (max == kNothing) max = 0;  // the powers are then 0, or NaN, which is not in the maximum
    for (int64_t col = 0; col < kept; ++col) sum += std::exp(x(col) - max);
    for (int64_t col = 0; col < args.y.cols; ++col) {
      const double y = col < kept && sum != 0 ? std::exp(x(col) - max) / sum : 0.0;
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col, y);
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
