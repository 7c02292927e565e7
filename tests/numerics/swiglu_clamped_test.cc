// gpt-oss's gate: examples by hand, both clamps, what is not finite, and refusals.
#include "kernels/swiglu_clamped/swiglu_clamped.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

// Runs the case of the dtype on every variant: body(variant, y).
void OnEveryVariant(DType dtype, const std::vector<double>& gate_up,
                    const std::function<void(const Variant&, const Tensor&)>& body) {
  for (const KernelUnderTest& kernel : KernelsUnderTest()) {
    if (std::string(kernel.name) != "swiglu_clamped") continue;
    for (const Case& c : kernel.cases()) {
      if (c.inputs[0].dtype != dtype || c.outputs[0].dtype != dtype) continue;
      std::vector<Tensor> inputs;
      inputs.emplace_back(dtype, 1, static_cast<int64_t>(gate_up.size()));
      for (size_t i = 0; i < gate_up.size(); ++i) {
        inputs[0].Set(0, static_cast<int64_t>(i), gate_up[i]);
      }
      for (const Variant& variant : Variants(kernel.implementations())) {
        body(variant, RunCase(c, variant, inputs)[0]);
      }
    }
  }
}

class SwiGluClampedDTypes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, SwiGluClampedDTypes, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

// sigmoid(1.702) = 0.845795765, sigmoid(11.914) = 0.999993307; up = -1 cancels.
TEST_P(SwiGluClampedDTypes, WorkedByHand) {
  const std::vector<double> want = {3 * 0.845795765, -6 * 6.999953147, 0, 0, -0.154204235 * 8};
  OnEveryVariant(GetParam(), {1, 2, 9, -9, 0, 5, 3, -1, -1, 100},
                 [&](const Variant& variant, const Tensor& y) {
                   for (int64_t i = 0; i < 5; ++i) {
                     const double w = want[static_cast<size_t>(i)];
                     EXPECT_NEAR(y.At(0, i), w, (Traits(GetParam()).epsilon + 1e-8) * std::abs(w))
                         << variant.label << " column " << i;
                   }
                 });
}

// gate is clamped from above only; up from both sides.
TEST_P(SwiGluClampedDTypes, Clamps) {
  OnEveryVariant(GetParam(), {7, 7, 8, 7, 7, 8, 100, 100, 7, -7, 7, -8, -8, 0, -7, 0},
                 [&](const Variant& variant, const Tensor& y) {
                   for (const int64_t column : {1, 2, 3}) {
                     EXPECT_EQ(y.Bits(0, column), y.Bits(0, 0)) << variant.label;
                   }
                   EXPECT_EQ(y.Bits(0, 5), y.Bits(0, 4)) << variant.label;
                   EXPECT_LT(std::abs(y.At(0, 6)), std::abs(y.At(0, 7))) << variant.label;
                 });
}

TEST_P(SwiGluClampedDTypes, WhatIsNotFinite) {
  OnEveryVariant(GetParam(),
                 {kInfinity, 0, -kInfinity, 3, 1, kInfinity, 1, -kInfinity, kNaN, 1, 1, kNaN, 7, 0,
                  1, 7, 1, -7},
                 [&](const Variant& variant, const Tensor& y) {
                   EXPECT_EQ(y.Bits(0, 0), y.Bits(0, 6)) << variant.label;
                   EXPECT_EQ(y.At(0, 1), 0) << variant.label;
                   EXPECT_EQ(y.Bits(0, 2), y.Bits(0, 7)) << variant.label;
                   EXPECT_EQ(y.Bits(0, 3), y.Bits(0, 8)) << variant.label;
                   EXPECT_TRUE(std::isnan(y.At(0, 4)) && std::isnan(y.At(0, 5))) << variant.label;
                 });
}

// Far below zero the result keeps its precision until it is a subnormal, and is never flushed
// early.
TEST(SwiGluClamped, SmallResultsAreKept) {
  const std::vector<double> gates = {-20, -40, -49.5, -50.5, -52, -55};
  std::vector<double> gate_up;
  for (const double gate : gates) gate_up.insert(gate_up.end(), {gate, 0});
  OnEveryVariant(DType::kF32, gate_up, [&](const Variant& variant, const Tensor& y) {
    for (size_t i = 0; i < gates.size(); ++i) {
      const double want = gates[i] * std::exp(1.702 * gates[i]);
      EXPECT_NEAR(y.At(0, static_cast<int64_t>(i)), want,
                  18 * kUnitRoundoffFp32 * std::abs(want) + 0x1p-148)
          << variant.label << " at " << gates[i];
    }
  });
}

// Down to half of BF16's smallest number, also where up + 1 brings it back into range.
TEST(SwiGluClamped, SubnormalResultsOfBf16AreRounded) {
  std::vector<double> gate_up;
  for (double gate = -46; gate >= -60; gate -= 0.25) {
    for (const double up : {-7.0, -0.75, 0.0, 7.0}) gate_up.insert(gate_up.end(), {gate, up});
  }
  OnEveryVariant(DType::kBF16, gate_up, [&](const Variant& variant, const Tensor& y) {
    for (size_t i = 0; i < gate_up.size(); i += 2) {
      const double gate = gate_up[i];
      const double want = (gate_up[i + 1] + 1) * gate / (1 + std::exp(-1.702 * gate));
      const double spacing =
          std::max(0x1p-133, std::exp2(std::floor(std::log2(std::abs(want))) - 7));
      EXPECT_NEAR(y.At(0, static_cast<int64_t>(i / 2)), want,
                  spacing / 2 + 120 * kUnitRoundoffFp32 * std::abs(want))
          << variant.label << " at " << gate << ", " << gate_up[i + 1];
    }
  });
}

TEST(SwiGluClamped, RefusesWhatDoesNotFit) {
  float memory[64] = {};
  const auto expect = [&](const ConstTensorView& gate_up, const TensorView& y,
                          const std::string& message) {
    const absl::Status status = SwiGluClamped({}, gate_up, y);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message));
  };
  const auto at = [&](int64_t element, std::initializer_list<int64_t> dims,
                      DType dtype = DType::kF32) {
    return TensorView(memory + element, dtype, dims);
  };
  expect(at(0, {2, 7}), at(32, {2, 3}),
         "gate_up: expected [.., 2 d], an even number of columns, got [2, 7] FP32");
  expect(at(0, {2, 8}), at(32, {2, 8}), "y: expected [2, 4] FP32, got [2, 8] FP32");
  expect(at(0, {2, 8}, DType::kF16), at(32, {2, 4}, DType::kBF16),
         "gate_up: expected BF16 or FP32, got FP16");
  expect(at(0, {2, 8}), at(8, {2, 4}), "y: must not overlap gate_up");
  EXPECT_TRUE(SwiGluClamped({}, at(0, {0, 8}), at(32, {0, 4})).ok());
  EXPECT_TRUE(SwiGluClamped({}, at(0, {3, 0}), at(32, {3, 0})).ok());
}

}  // namespace
}  // namespace fuseblock::testing
