// LayerNorm in FP64, in two passes, rounded once.
#include <cmath>
#include <vector>

#include "kernels/base/reference.h"
#include "kernels/layer_norm/layer_norm.h"

namespace fuseblock {
namespace {

// The mean, put right by what the sum's rounding left, so that a constant row's is the constant.
double Mean(const std::vector<double>& x) {
  const double count = static_cast<double>(x.size());
  double sum = 0, rest = 0;
  for (const double value : x) sum += value;
  const double mean = sum / count;
  for (const double value : x) rest += value - mean;
  return mean + rest / count;
}

}  // namespace

absl::Status LayerNormReference(const ExecutionContext&, const LayerNormArgs& args) {
  const int64_t columns = args.y.cols;
  std::vector<double> x(columns);
  for (int64_t row = 0; row < args.y.rows; ++row) {
    for (int64_t col = 0; col < columns; ++col) {
      x[col] = ReadDouble(args.x.data, args.x_dtype, row * args.x.stride + col);
    }
    const double mean = Mean(x);
    double sum = 0;
    for (const double value : x) sum += (value - mean) * (value - mean);
    const double root = std::sqrt(sum / static_cast<double>(columns) + args.eps);
    for (int64_t col = 0; col < columns; ++col) {
      double n = (x[col] - mean) / root;
      if (args.weight != nullptr) n *= ReadDouble(args.weight, args.weight_dtype, col);
      if (args.bias != nullptr) n += ReadDouble(args.bias, args.weight_dtype, col);
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col, n);
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
