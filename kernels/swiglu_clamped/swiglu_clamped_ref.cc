// The clamped SwiGLU in FP64, rounded once.
#include <cmath>

#include "kernels/base/reference.h"
#include "kernels/swiglu_clamped/constants.h"
#include "kernels/swiglu_clamped/swiglu_clamped.h"

namespace fuseblock {
namespace {

// x sigmoid(1.702 x), each side by the form that cannot overflow.
double GatedFp64(double x) {
  if (std::isinf(x) && x < 0) return -0.0;
  if (x >= 0 || std::isnan(x)) return x / (1 + std::exp(-kSwiGluAlpha * x));
  const double e = std::exp(kSwiGluAlpha * x);
  return x * e / (1 + e);
}

}  // namespace

absl::Status SwiGluClampedReference(const ExecutionContext&, const SwiGluClampedArgs& args) {
  const double limit = static_cast<double>(kSwiGluLimit);
  for (int64_t row = 0; row < args.y.rows; ++row) {
    for (int64_t col = 0; col < args.y.cols; ++col) {
      const int64_t at = row * args.gate_up.stride + 2 * col;
      double gate = ReadDouble(args.gate_up.data, args.in_dtype, at);
      double up = ReadDouble(args.gate_up.data, args.in_dtype, at + 1);
      if (gate > limit) gate = limit;  // a NaN stays
      if (up > limit) up = limit;
      if (up < -limit) up = -limit;
      WriteDouble(args.y.data, args.y_dtype, row * args.y.stride + col, (up + 1) * GatedFp64(gate));
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
