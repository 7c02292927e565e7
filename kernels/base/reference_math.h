// Functions in FP64 that several references share.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/base/activation.h"

namespace fuseblock {

// x * sigmoid(x), each side by the form that cannot overflow.
inline double SiluFp64(double x) {
  if (x == -std::numeric_limits<double>::infinity()) return -0.0;
  if (x >= 0 || std::isnan(x)) return x / (1 + std::exp(-x));
  const double e = std::exp(x);
  return x * e / (1 + e);
}

// The same as PyTorch evaluates it, x / (1 + exp(-x)) with exp in FP32: where that overflows, below
// -88.72, the result is -0.
inline double SiluEagerFp64(double x) {
  if (std::isinf(static_cast<float>(std::exp(-x)))) return -0.0;
  return SiluFp64(x);
}

// x Phi(x), by erfc, which keeps its precision where 1 + erf would cancel.
inline double GeluErfFp64(double x) {
  if (x == -std::numeric_limits<double>::infinity()) return -0.0;
  return 0.5 * x * std::erfc(-x * 0.70710678118654752440);
}

// x (1 + tanh u) / 2 is x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline double GeluTanhFp64(double x) {
  if (x == -std::numeric_limits<double>::infinity()) return -0.0;
  const double v = 1.59576912160573071176 * (x + 0.044715 * x * x * x);
  if (x >= 0 || std::isnan(x)) return x / (1 + std::exp(-v));
  const double e = std::exp(v);
  return x * e / (1 + e);
}

inline double ActivatedFp64(Activation activation, double x) {
  switch (activation) {
    case Activation::kGeluTanh:
      return GeluTanhFp64(x);
    case Activation::kGeluErf:
      return GeluErfFp64(x);
    default:
      return SiluFp64(x);
  }
}

}  // namespace fuseblock
