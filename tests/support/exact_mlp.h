// A feed-forward network of one row in FP64, of any form, with what each output may differ by from
// it: the errors of every rounding on the way, carried forward.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/base/half.h"
#include "kernels/base/reference_math.h"
#include "kernels/base/rounding.h"
#include "kernels/feed_forward/form.h"
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

// Row n of the weight times x, and the bias where there is one, in FP32.
inline Bounded ExactProduct(const HostTensor& w, int64_t n, const std::vector<Bounded>& x,
                            const HostTensor* bias = nullptr) {
  Bounded sum;
  for (size_t k = 0; k < x.size(); ++k) {
    const double weight = w.at(n, static_cast<int64_t>(k));
    sum.value += weight * x[k].value;
    sum.error += std::fabs(weight) * x[k].error;
    sum.norm += std::fabs(weight) * (std::fabs(x[k].value) + x[k].error);
  }
  if (bias != nullptr) {
    sum.value += bias->at(0, n);
    sum.norm += std::fabs(bias->at(0, n));
  }
  sum.error += ProductRoundings(static_cast<int64_t>(x.size())) * 0x1p-24 * sum.norm;
  return sum;
}

// FP32 roundings of an activation, of FP32 or 16-bit results: of silu an exponential within 2^-20
// is enough for these, of gelu 2^-18 of the value, and 2^-17 by a table.
inline double ActivationRoundings(Activation activation, DType out) {
  if (activation == Activation::kSilu) return out == DType::kF32 ? 8 : 18;
  return out == DType::kF32 ? 16 : 126;
}

// The slope of silu is between -0.1 and 1.1, that of gelu between -0.13 and 1.13.
inline double SlopeMax(Activation activation) {
  return activation == Activation::kSilu ? 1.1 : 1.13;
}

inline Bounded ExactActivation(Activation activation, DType out, Bounded x) {
  Bounded y;
  y.value = ActivatedFp64(activation, x.value);
  y.error = SlopeMax(activation) * x.error +
            ActivationRoundings(activation, out) * 0x1p-24 * std::fabs(y.value);
  return y;
}

// A network's weights in host memory; null: what the form or the model has not.
struct MlpTensors {
  FeedForwardForm form;
  const HostTensor *gate, *up, *down;
  const HostTensor *up_bias = nullptr, *down_bias = nullptr;
};

// What down reads of the network, element n.
inline Bounded ExactInner(const MlpTensors& mlp, Rounding rounding, const std::vector<Bounded>& x,
                          int64_t n) {
  const FeedForwardFormEntry& form = EntryOf(mlp.form);
  const DType dtype = mlp.up->dtype();
  const bool hf = rounding == Rounding::kHf;
  const auto stored_if = [&](bool store, Bounded v) { return store ? Stored(dtype, v) : v; };
  const Bounded u = stored_if(hf, ExactProduct(*mlp.up, n, x, mlp.up_bias));
  const Bounded first = form.gated ? stored_if(hf, ExactProduct(*mlp.gate, n, x)) : u;
  const Bounded a = ExactActivation(form.activation, dtype, first);
  if (!form.gated) return Stored(dtype, a);
  const Bounded s = stored_if(hf, a);
  Bounded p;
  p.value = s.value * u.value;
  p.error = s.error * (std::fabs(u.value) + u.error) + std::fabs(s.value) * u.error;
  p.error += 0x1p-24 * (std::fabs(p.value) + p.error);
  return Stored(dtype, p);
}

// y[m, :] of the network, with its rounding to y_dtype.
inline std::vector<Bounded> ExactMlp(const MlpTensors& mlp, Rounding rounding,
                                     const std::vector<Bounded>& x, DType y_dtype) {
  std::vector<Bounded> inner;
  for (int64_t n = 0; n < mlp.up->rows(); ++n) inner.push_back(ExactInner(mlp, rounding, x, n));
  std::vector<Bounded> y;
  for (int64_t n = 0; n < mlp.down->rows(); ++n) {
    y.push_back(Stored(y_dtype, ExactProduct(*mlp.down, n, inner, mlp.down_bias)));
  }
  return y;
}

inline std::vector<Bounded> ExactRow(const HostTensor& x, int64_t m) {
  std::vector<Bounded> row;
  for (int64_t k = 0; k < x.cols(); ++k) row.push_back({x.at(m, k), 0, 0});
  return row;
}

}  // namespace fuseblock::testing
