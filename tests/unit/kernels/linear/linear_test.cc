// The product's contract: worked examples, shapes, bounds, layouts, refusals.
#include "kernels/linear/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/kernels/linear/linear_cases.h"

namespace fuseblock::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LinearTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, LinearTest, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

HostTensor Filled(DType dtype, std::vector<int64_t> dims, std::vector<float> values) {
  HostTensor tensor(dtype, std::move(dims));
  for (size_t i = 0; i < values.size(); ++i) {
    tensor.set(static_cast<int64_t>(i) / tensor.cols(), static_cast<int64_t>(i) % tensor.cols(),
               values[i]);
  }
  return tensor;
}

TEST_P(LinearTest, WorkedExample) {
  const HostTensor x = Filled(GetParam(), {1, 2}, {1, 2});
  const HostTensor w = Filled(GetParam(), {3, 2}, {3, 4, 5, 6, 7, 8});
  const HostTensor b = Filled(GetParam(), {3}, {0.5, -1, 100});
  const LinearWeight plain = Prepared(w);
  const LinearWeight biased = Prepared(w, &b);
  for (const Variant& variant : LinearVariantsFor(plain)) {
    for (const DType y_dtype : {GetParam(), DType::kF32}) {
      HostTensor y(y_dtype, {1, 3});
      RunVariant(variant, x.view(), plain, y.view());
      EXPECT_EQ(y.at(0, 0), 11) << variant.label;
      EXPECT_EQ(y.at(0, 1), 17) << variant.label;
      EXPECT_EQ(y.at(0, 2), 23) << variant.label;
      RunVariant(variant, x.view(), biased, y.view());
      EXPECT_EQ(y.at(0, 0), 11.5) << variant.label;
      EXPECT_EQ(y.at(0, 1), 16) << variant.label;
      EXPECT_EQ(y.at(0, 2), 123) << variant.label;
    }
  }
}

// N and K on both sides of a panel and of a segment, M on both sides of a tile and of a task.
TEST_P(LinearTest, EveryShapeIsWithinItsBound) {
  uint32_t seed = 1;
  for (const int64_t n : {1, 2, 63, 64, 65, 130}) {
    for (const int64_t k : {1, 2, 3, 63, 64, 65, 127, 129, 576}) {
      const HostTensor w = NormalTensor(GetParam(), {n, k}, ++seed);
      const HostTensor b = NormalTensor(GetParam(), {n}, ++seed);
      const LinearWeight weight = Prepared(w, &b);
      for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 13, 50}) {
        const HostTensor x = NormalTensor(GetParam(), {m, k}, ++seed);
        for (const Variant& variant : LinearVariantsFor(weight)) {
          if (!IsFast(variant) && m * n * k > 100000) continue;
          for (const DType y_dtype : {GetParam(), DType::kF32}) {
            HostTensor y(y_dtype, {m, n}, 3);
            RunVariant(variant, x.view(), weight, y.view());
            Worst worst;
            Compare(y, x, w, &b, worst, m * n * k > 100000 ? 7 : 1);
            ASSERT_LE(worst.ratio, 1) << variant.label << " seed " << seed << ": " << worst.text;
            ASSERT_TRUE(y.GuardsIntact()) << variant.label << ", M " << m << ", N " << n;
            if (y_dtype == DType::kF32) break;
          }
        }
      }
    }
  }
}

// The shape at which a stream-K product of another project hung.
TEST_P(LinearTest, LongSums) {
  const HostTensor w = NormalTensor(GetParam(), {2560, 8192}, 7, 0.02f);
  const HostTensor x = NormalTensor(GetParam(), {16, 8192}, 8);
  const LinearWeight weight = Prepared(w);
  HostTensor y(DType::kF32, {16, 2560});
  ASSERT_TRUE(Linear({}, x.view(), weight, y.view()).ok());
  Worst worst;
  Compare(y, x, w, nullptr, worst, 97);
  EXPECT_LE(worst.ratio, 1) << worst.text;
}

TEST_P(LinearTest, NoInnerAxisGivesTheBiasOrZeros) {
  const HostTensor w(GetParam(), {70, 0});
  const HostTensor b = NormalTensor(GetParam(), {70}, 3);
  const HostTensor x(GetParam(), {5, 0});
  const LinearWeight plain = Prepared(w);
  const LinearWeight biased = Prepared(w, &b);
  for (const Variant& variant : LinearVariantsFor(plain)) {
    HostTensor y(GetParam(), {5, 70});
    RunVariant(variant, x.view(), plain, y.view());
    HostTensor z(GetParam(), {5, 70});
    RunVariant(variant, x.view(), biased, z.view());
    for (int64_t m = 0; m < 5; ++m) {
      for (int64_t n = 0; n < 70; ++n) {
        ASSERT_EQ(y.at(m, n), 0) << variant.label;
        ASSERT_EQ(z.at(m, n), b.at(0, n)) << variant.label;
      }
    }
  }
}

TEST_P(LinearTest, NoRowsAndNoOutputsAreOk) {
  const HostTensor w = NormalTensor(GetParam(), {3, 2}, 1);
  const LinearWeight weight = Prepared(w);
  HostTensor x(GetParam(), {0, 2});
  HostTensor y(GetParam(), {0, 3});
  EXPECT_TRUE(Linear({}, x.view(), weight, y.view()).ok());
  HostTensor none(GetParam(), {0, 2});
  const LinearWeight empty = Prepared(none);
  HostTensor x1(GetParam(), {4, 2});
  HostTensor y1(GetParam(), {4, 0});
  EXPECT_TRUE(Linear({}, x1.view(), empty, y1.view()).ok());
}

TEST_P(LinearTest, LeadingAxesComeBackAsTheyWent) {
  const HostTensor w = NormalTensor(GetParam(), {5, 4}, 1);
  const LinearWeight weight = Prepared(w);
  const HostTensor x = NormalTensor(GetParam(), {2, 3, 4}, 2);
  HostTensor y(GetParam(), {2, 3, 5});
  ASSERT_TRUE(Linear({}, x.view(), weight, y.view()).ok());
  Worst worst;
  Compare(y, x, w, nullptr, worst);
  EXPECT_LE(worst.ratio, 1) << worst.text;
}

TEST_P(LinearTest, BothLayoutsAndAnyPlaceInMemoryPackAlike) {
  const HostTensor w = NormalTensor(GetParam(), {67, 35}, 1);
  HostTensor transposed(GetParam(), {35, 67});
  HostTensor apart(GetParam(), {67, 35}, 5, 1);  // a row stride, and an odd address
  for (int64_t n = 0; n < 67; ++n) {
    for (int64_t k = 0; k < 35; ++k) {
      transposed.set(k, n, static_cast<float>(w.at(n, k)));
      apart.set(n, k, static_cast<float>(w.at(n, k)));
    }
  }
  const LinearWeight weights[] = {Prepared(w), Prepared(transposed, nullptr, WeightLayout::kInOut),
                                  Prepared(apart)};
  const HostTensor x = NormalTensor(GetParam(), {9, 35}, 2);
  HostTensor expected(GetParam(), {9, 67});
  ASSERT_TRUE(Linear({}, x.view(), weights[0], expected.view()).ok());
  for (const LinearWeight& weight : weights) {
    EXPECT_EQ(weight.n(), 67);
    EXPECT_EQ(weight.k(), 35);
    HostTensor y(GetParam(), {9, 67});
    ASSERT_TRUE(Linear({}, x.view(), weight, y.view()).ok());
    EXPECT_TRUE(SameRows(y, 0, expected, 0, 9));
  }
}

TEST_P(LinearTest, SubnormalWeightsCount) {
  // The smallest subnormal of FP16 is 2^-24, of the others too small for a product with 2^10.
  const bool half = GetParam() == DType::kF16;
  const float tiny = half ? 0x1p-24f : 0x1p-130f;
  HostTensor w(GetParam(), {1, 1});
  w.set(0, 0, tiny);
  HostTensor x(GetParam(), {1, 1});
  x.set(0, 0, 0x1p10f);
  const LinearWeight weight = Prepared(w);
  for (const Variant& variant : LinearVariantsFor(weight)) {
    HostTensor y(DType::kF32, {1, 1});
    RunVariant(variant, x.view(), weight, y.view());
    const bool flushed =
        variant.implementation == "avx512_bf16" || variant.implementation == "amx_bf16";
    EXPECT_EQ(y.at(0, 0), flushed ? 0 : static_cast<double>(tiny) * 0x1p10) << variant.label;
  }
}

TEST_P(LinearTest, ANanAndAnInfinityStayInTheirRow) {
  const HostTensor w = NormalTensor(GetParam(), {66, 70}, 1);
  const LinearWeight weight = Prepared(w);
  HostTensor x = NormalTensor(GetParam(), {9, 70}, 2);
  HostTensor clean(GetParam(), {9, 66});
  for (const Variant& variant : LinearVariantsFor(weight)) {
    RunVariant(variant, x.view(), weight, clean.view());
    HostTensor bad = x;
    bad.set(2, 69, NAN);
    bad.set(7, 0, HUGE_VALF);
    HostTensor y(GetParam(), {9, 66});
    RunVariant(variant, bad.view(), weight, y.view());
    for (int64_t n = 0; n < 66; ++n) {
      ASSERT_TRUE(std::isnan(y.at(2, n))) << variant.label;
      ASSERT_EQ(y.at(7, n), w.at(n, 0) > 0 ? HUGE_VAL : -HUGE_VAL) << variant.label;
    }
    for (const int64_t m : {0, 1, 3, 4, 5, 6, 8}) {
      ASSERT_TRUE(SameRows(y, m, clean, m, 1)) << variant.label << " row " << m;
    }
  }
}

TEST(LinearRounding, OverflowInFp16IsInfinityAndTiesGoToEven) {
  HostTensor w(DType::kF16, {1, 2});
  w.set(0, 0, 60000);
  w.set(0, 1, 1);
  HostTensor x(DType::kF16, {1, 2});
  x.set(0, 0, 2);
  x.set(0, 1, 0);
  const LinearWeight weight = Prepared(w);
  HostTensor wb(DType::kBF16, {1, 2});
  wb.set(0, 0, 1);
  wb.set(0, 1, 0x1p-8f);
  HostTensor xb(DType::kBF16, {1, 2});
  xb.set(0, 0, 1);
  xb.set(0, 1, 1);
  const LinearWeight bf16 = Prepared(wb);
  for (const Variant& variant : LinearVariantsFor(weight)) {
    HostTensor y(DType::kF16, {1, 1});
    RunVariant(variant, x.view(), weight, y.view());
    EXPECT_EQ(y.at(0, 0), HUGE_VAL) << variant.label;
    HostTensor wide(DType::kF32, {1, 1});  // stays finite where it is not stored in FP16
    RunVariant(variant, x.view(), weight, wide.view());
    EXPECT_EQ(wide.at(0, 0), 120000) << variant.label;
  }
  for (const Variant& variant : LinearVariantsFor(bf16)) {
    HostTensor y(DType::kBF16, {1, 1});
    xb.set(0, 1, 1);
    RunVariant(variant, xb.view(), bf16, y.view());
    EXPECT_EQ(y.at(0, 0), 1.0) << variant.label;  // 1.00390625
    xb.set(0, 1, 3);
    RunVariant(variant, xb.view(), bf16, y.view());
    EXPECT_EQ(y.at(0, 0), 1.015625) << variant.label;  // 1.01171875
  }
}

TEST_P(LinearTest, AFloatBiasKeepsItsBits) {
  const HostTensor w(GetParam(), {2, 0});
  HostTensor b(DType::kF32, {2});
  b.set(0, 0, 1.0f + 0x1p-20f);
  b.set(0, 1, -3.0f - 0x1p-20f);
  const LinearWeight weight = Prepared(w, &b);
  HostTensor x(GetParam(), {1, 0});
  HostTensor y(DType::kF32, {1, 2});
  ASSERT_TRUE(Linear({}, x.view(), weight, y.view()).ok());
  EXPECT_EQ(y.at(0, 0), b.at(0, 0));
  EXPECT_EQ(y.at(0, 1), b.at(0, 1));
}

TEST(LinearWeightTest, SaysWhatItIs) {
  const HostTensor w = NormalTensor(DType::kBF16, {65, 33}, 1);
  const LinearWeight weight = Prepared(w);
  EXPECT_EQ(weight.dtype(), DType::kBF16);
  EXPECT_EQ(weight.device(), Device());
  EXPECT_EQ(weight.bytes(), 2u * 64 * 34 * 2);  // two panels, K filled up to a pair
  EXPECT_THAT(weight.description(), HasSubstr("panels 64 x 33, "));
}

std::string PrepareError(const ConstTensorView& weight,
                         const std::optional<ConstTensorView>& bias = std::nullopt) {
  const absl::StatusOr<LinearWeight> prepared = LinearWeight::Prepare(Device(), weight, bias);
  EXPECT_EQ(prepared.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(prepared.status().message());
}

TEST(LinearWeightTest, RefusesWhatIsNoWeight) {
  const float data[8] = {};
  EXPECT_THAT(PrepareError(ConstTensorView(data, DType::kF32, {8})),
              AllOf(HasSubstr("rank 2"), HasSubstr("[8] FP32")));
  EXPECT_THAT(PrepareError(ConstTensorView(data, DType::kI32, {2, 4})), HasSubstr("INT32"));
  ConstTensorView spread(data, DType::kF32, {2, 2});
  spread.stride = {4, 2};
  EXPECT_THAT(PrepareError(spread), AllOf(HasSubstr("weight"), HasSubstr("stride 2")));
  EXPECT_THAT(PrepareError(ConstTensorView(data, DType::kF32, {2, 4}, {DeviceType::kCuda, 0})),
              HasSubstr("host memory"));
  const ConstTensorView weight(data, DType::kF32, {2, 4});
  EXPECT_THAT(PrepareError(weight, ConstTensorView(data, DType::kF32, {3})),
              AllOf(HasSubstr("bias"), HasSubstr("[2]"), HasSubstr("[3]")));
  EXPECT_THAT(PrepareError(weight, ConstTensorView(data, DType::kBF16, {2})),
              AllOf(HasSubstr("bias"), HasSubstr("BF16")));
}

TEST(LinearWeightTest, RefusesSegmentsThatDoNotDivideK) {
  const std::vector<float> data(12);
  const ConstTensorView weight(data.data(), DType::kF32, {2, 6});
  for (const int segments : {4, 0}) {
    const absl::Status status =
        LinearWeight::Prepare(Device(), weight, std::nullopt, WeightLayout::kOutIn, {}, segments)
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("segments: expected a divisor of 6 columns"));
  }
}

TEST(LinearCheck, NamesWhatDoesNotFit) {
  const HostTensor w = NormalTensor(DType::kBF16, {3, 2}, 1);
  const LinearWeight weight = Prepared(w);
  float memory[64] = {};
  const auto error = [&](const ConstTensorView& x, const TensorView& y) {
    const absl::Status status = Linear({}, x, weight, y);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const ConstTensorView x(memory, DType::kBF16, {4, 2});
  const TensorView y(memory + 32, DType::kBF16, {4, 3});
  EXPECT_TRUE(Linear({}, x, weight, y).ok());
  EXPECT_THAT(error(ConstTensorView(memory, DType::kBF16, {4, 3}), y),
              AllOf(HasSubstr("x: expected 2 columns"), HasSubstr("[4, 3] BF16")));
  EXPECT_THAT(error(ConstTensorView(memory, DType::kF32, {4, 2}), y),
              AllOf(HasSubstr("x: expected BF16"), HasSubstr("FP32")));
  EXPECT_THAT(error(x, TensorView(memory + 32, DType::kF16, {4, 3})),
              AllOf(HasSubstr("y: expected BF16"), HasSubstr("FP16")));
  EXPECT_THAT(error(x, TensorView(memory + 32, DType::kBF16, {4, 4})),
              AllOf(HasSubstr("y: expected 3 columns"), HasSubstr("[4, 4]")));
  EXPECT_THAT(error(x, TensorView(memory + 32, DType::kBF16, {5, 3})),
              AllOf(HasSubstr("[4, 2]"), HasSubstr("[5, 3]")));
  EXPECT_THAT(error(x, TensorView(memory + 32, DType::kBF16, {2, 2, 3})), HasSubstr("[2, 2, 3]"));
  EXPECT_THAT(error(x, TensorView(memory + 1, DType::kBF16, {4, 3})), HasSubstr("overlap"));
  EXPECT_THAT(error(x, TensorView(memory, DType::kBF16, {4, 3})), HasSubstr("y: must"));
  EXPECT_THAT(error(ConstTensorView(memory, DType::kBF16, {4, 2}, {DeviceType::kCuda, 0}), y),
              AllOf(HasSubstr("cpu"), HasSubstr("cuda:0")));
  ConstTensorView spread = x;
  spread.stride = {4, 2};
  EXPECT_THAT(error(spread, y), AllOf(HasSubstr("x"), HasSubstr("stride 2")));
  EXPECT_THAT(error(ConstTensorView(memory, DType::kBF16, {}), y), HasSubstr("rank"));
}

}  // namespace
}  // namespace fuseblock::testing
