// The intervals in which an output of transformers' eager code can lie.
//
// Two right implementations of one chain of rounded operations differ in the order of their FP32
// sums and in nothing else. So each sum is known up to gamma = (number of its roundings) * 2^-24
// times the sum of its terms' magnitudes, and rounding such an interval's ends to the dtype gives
// every value that may be stored there: mostly one, at times two neighbours. What is stored goes on
// as an interval. The result is rigorous (no constant is chosen) and narrow (a rounding that is
// left out, or made twice, falls outside).
#pragma once

#include <vector>

#include "kernels/base/dtype.h"

namespace fuseblock::testing {

struct Interval {
  double low = 0, high = 0;
};
using Row = std::vector<Interval>;

// Rounds to the dtype what an operation may give in FP32.
class EagerArithmetic {
 public:
  explicit EagerArithmetic(DType dtype) : dtype_(dtype) {}

  // x + y, element by element.
  Row Add(const Row& x, const Row& y) const;
  // RMSNorm as LlamaRMSNorm writes it: the normalised value is rounded before it meets the weight.
  Row Norm(const Row& x, const std::vector<double>& weight, double eps) const;
  // weight [n, k] (+ bias [n], or empty).
  Row Linear(const Row& x, const std::vector<double>& weight,
             const std::vector<double>& bias) const;
  // silu(gate) * up, both rounded.
  Row Gated(const Row& gate, const Row& up) const;

 private:
  // [low - slack, high + slack], rounded to the dtype.
  Interval Rounded(double low, double high, double slack) const;

  DType dtype_;
};

}  // namespace fuseblock::testing
