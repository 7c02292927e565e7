// What the tests of the product share: a product made ready, and its value in FP64 with the bound
// that the number of roundings gives.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "hwy/targets.h"
#include "kernels/linear/linear.h"
#include "tests/support/exact_mlp.h"
#include "tests/support/host_tensor.h"
#include "tests/support/numerics_variants.h"

namespace fuseblock::testing {

// The ways to compute with that weight on this machine's CPU.
inline std::vector<Variant> LinearVariantsFor(const LinearWeight& weight) {
  const LinearArgs args{{}, &weight, {}, weight.dtype()};
  std::vector<Variant> fitting;
  for (const Variant& variant : Variants(DescribeList(LinearImplementations()))) {
    if (variant.device != DeviceType::kCpu) continue;
    for (const Implementation<LinearArgs>& item : LinearImplementations()) {
      if (item.name == variant.implementation && item.why_not(args).empty()) {
        fitting.push_back(variant);
      }
    }
  }
  return fitting;
}

// Vectors of more than a few lanes, and a step that is one fused multiply-add.
inline bool IsFast(const Variant& variant) {
  return variant.implementation == "avx512_bf16" ||
         (variant.simd_target != 0 && variant.simd_target <= HWY_AVX2);  // lower is better
}

inline LinearWeight Prepared(const HostTensor& weight, const HostTensor* bias = nullptr,
                             WeightLayout layout = WeightLayout::kOutIn) {
  std::optional<ConstTensorView> bias_view;
  if (bias != nullptr) bias_view = bias->view();
  absl::StatusOr<LinearWeight> prepared =
      LinearWeight::Prepare(Device(), weight.view(), bias_view, layout);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return *std::move(prepared);
}

// Runs one variant, by itself.
inline void RunVariant(const Variant& variant, const ConstTensorView& x, const LinearWeight& weight,
                       const TensorView& y, const ParallelFor& parallel_for = {}) {
  const absl::StatusOr<LinearArgs> args = CheckLinear(x, weight, y);
  ASSERT_TRUE(args.ok()) << args.status();
  const ScopedVariant scoped(variant);
  const absl::Status status = RunNamed(LinearImplementations(), variant.implementation,
                                       ExecutionContext{Device(), nullptr, parallel_for}, *args);
  ASSERT_TRUE(status.ok()) << variant.label << ": " << status;
}

struct Exact {
  double value = 0;
  double norm = 0;  // sum of |w| |x| and |bias|
};

inline Exact ExactOutput(const HostTensor& x, int64_t m, const HostTensor& w, int64_t n,
                         const HostTensor* bias = nullptr) {
  Exact exact;
  for (int64_t k = 0; k < x.cols(); ++k) {
    const double product = x.at(m, k) * w.at(n, k);
    exact.value += product;
    exact.norm += std::fabs(product);
  }
  if (bias != nullptr) {
    exact.value += bias->at(0, n);
    exact.norm += std::fabs(bias->at(0, n));
  }
  return exact;
}

// The largest |error| / bound over all outputs, with the cell named.
struct Worst {
  double ratio = 0;
  std::string text;
};

inline void Compare(const HostTensor& y, const HostTensor& x, const HostTensor& w,
                    const HostTensor* bias, Worst& worst, int64_t column_step = 1) {
  for (int64_t m = 0; m < y.rows(); ++m) {
    for (int64_t n = 0; n < y.cols(); n += column_step) {
      const Exact exact = ExactOutput(x, m, w, n, bias);
      const double accumulated = ProductRoundings(x.cols()) * 0x1p-24 * exact.norm;
      double bound = accumulated + HalfSpacing(y.dtype(), std::fabs(exact.value) + accumulated);
      if (y.dtype() != DType::kF32) bound += 0x1p-24 * std::fabs(exact.value);
      const double error = std::fabs(y.at(m, n) - exact.value);
      const double ratio = error / bound;
      if (!(ratio <= worst.ratio)) {  // a NaN is the worst
        worst.ratio = std::isnan(ratio) ? HUGE_VAL : ratio;
        worst.text = absl::StrCat("y[", m, ", ", n, "] of M ", y.rows(), ", N ", y.cols(), ", K ",
                                  x.cols(), ": ", y.at(m, n), ", exact ", exact.value, ", error ",
                                  error, ", bound ", bound);
      }
    }
  }
}

}  // namespace fuseblock::testing
