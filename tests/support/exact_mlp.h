// The SwiGLU feed-forward of one row in FP64, with what each output may differ by from it: the
// errors of every rounding on the way, carried forward.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/base/half.h"
#include "kernels/base/rounding.h"
#include "tests/support/host_tensor.h"

namespace fuseblock::testing {

struct Bounded {
  double value = 0;
  double error = 0;
  double norm = 0;  // of a product: the sum of its terms' magnitudes
};

// Half the distance between neighbours in the dtype at that magnitude.
inline double HalfSpacing(DType dtype, double magnitude) {
  const double smallest_normal = dtype == DType::kF16 ? 0x1p-14 : 0x1p-126;
  const double at = std::max(std::fabs(magnitude), smallest_normal);
  return std::exp2(std::floor(std::log2(at))) * Traits(dtype).epsilon / 2;
}

// FP32 roundings on a product's way: the chain of a segment of 64 steps, one addition for each
// segment, and the bias.
inline double ProductRoundings(int64_t k) {
  return static_cast<double>(std::min<int64_t>(k, 64) + (k + 63) / 64 + 1);
}

// A value rounded to the dtype.
inline Bounded Stored(DType dtype, Bounded v) {
  v.error += HalfSpacing(dtype, std::fabs(v.value) + v.error);
  return v;
}

// Row n of the weight times x, in FP32.
inline Bounded ExactProduct(const HostTensor& w, int64_t n, const std::vector<Bounded>& x) {
  Bounded sum;
  for (size_t k = 0; k < x.size(); ++k) {
    const double weight = w.at(n, static_cast<int64_t>(k));
    sum.value += weight * x[k].value;
    sum.error += std::fabs(weight) * x[k].error;
    sum.norm += std::fabs(weight) * (std::fabs(x[k].value) + x[k].error);
  }
  sum.error += ProductRoundings(static_cast<int64_t>(x.size())) * 0x1p-24 * sum.norm;
  return sum;
}

// FP32 roundings of silu, of FP32 or 16-bit results (an exponential within 2^-20 is enough there).
inline double SiluRoundings(DType out) { return out == DType::kF32 ? 8 : 18; }

inline Bounded ExactSilu(DType out, Bounded x) {
  Bounded y;
  y.value = x.value / (1 + std::exp(-x.value));
  // The slope of silu is between -0.1 and 1.1.
  y.error = 1.1 * x.error + SiluRoundings(out) * 0x1p-24 * std::fabs(y.value);
  return y;
}

// y[m, :] of down(silu(gate(x)) * up(x)), with its rounding to y_dtype.
inline std::vector<Bounded> ExactMlp(const HostTensor& gate, const HostTensor& up,
                                     const HostTensor& down, Rounding rounding,
                                     const std::vector<Bounded>& x, DType y_dtype) {
  const DType dtype = gate.dtype();
  const bool hf = rounding == Rounding::kHf;
  const auto stored_if = [&](bool store, Bounded v) { return store ? Stored(dtype, v) : v; };
  std::vector<Bounded> inner;
  for (int64_t n = 0; n < gate.rows(); ++n) {
    const Bounded g = stored_if(hf, ExactProduct(gate, n, x));
    const Bounded u = stored_if(hf, ExactProduct(up, n, x));
    const Bounded s = stored_if(hf, ExactSilu(dtype, g));
    Bounded p;
    p.value = s.value * u.value;
    p.error = s.error * (std::fabs(u.value) + u.error) + std::fabs(s.value) * u.error;
    p.error += 0x1p-24 * (std::fabs(p.value) + p.error);
    inner.push_back(Stored(dtype, p));
  }
  std::vector<Bounded> y;
  for (int64_t n = 0; n < down.rows(); ++n) {
    y.push_back(Stored(y_dtype, ExactProduct(down, n, inner)));
  }
  return y;
}

inline std::vector<Bounded> ExactRow(const HostTensor& x, int64_t m) {
  std::vector<Bounded> row;
  for (int64_t k = 0; k < x.cols(); ++k) row.push_back({x.at(m, k), 0, 0});
  return row;
}

}  // namespace fuseblock::testing
