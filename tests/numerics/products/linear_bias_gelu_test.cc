// linear + bias + GELU: by hand, the two forms apart, against PyTorch's values, and bit for bit
// what the GELU kernels make of the product's FP32 output.
#include "kernels/linear_bias_gelu/linear_bias_gelu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "server/model/safetensors.h"
#include "tests/support/exact_mlp.h"
#include "tests/support/numerics_variants.h"

namespace fuseblock::testing {
namespace {

constexpr GeluForm kForms[] = {GeluForm::kErf, GeluForm::kTanh};

const char* NameOf(GeluForm form) { return form == GeluForm::kErf ? "erf" : "tanh"; }

double Gelu(GeluForm form, double x) {
  if (form == GeluForm::kErf) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  const double pi = 3.14159265358979323846;
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
}

// In units of 2^-24, for FP32 and for 16-bit results; see the ladder's cases of GELU.
double GeluRoundings(DType out) { return out == DType::kF32 ? 16 : 64; }

class LinearGelu : public ::testing::TestWithParam<DType> {
 protected:
  static LinearWeight Prepared(const HostTensor& weight, const HostTensor* bias) {
    std::optional<ConstTensorView> bias_view;
    if (bias != nullptr) bias_view = bias->view();
    auto prepared = LinearWeight::Prepare(Device(), weight.view(), bias_view);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return *std::move(prepared);
  }

  // body(variant) for every implementation on the CPU that takes the dtype, in force while it runs.
  template <typename F>
  void ForEachVariant(const LinearWeight& weight, F&& body) {
    const LinearArgs args{{}, &weight, {}, weight.dtype()};
    for (const Variant& variant : Variants(DescribeList(LinearImplementations()))) {
      for (const auto& item : LinearImplementations()) {
        if (item.device != DeviceType::kCpu || item.name != variant.implementation) continue;
        if (!item.why_not(args).empty()) continue;
        const ScopedVariant scoped(variant);
        body(variant);
      }
    }
  }

  static void Run(const Variant& variant, const HostTensor& x, const LinearWeight& weight,
                  GeluForm form, HostTensor& y) {
    const auto args = CheckLinearBiasGelu(x.view(), weight, form, y.view());
    ASSERT_TRUE(args.ok()) << args.status();
    const absl::Status status =
        RunNamed(LinearImplementations(), variant.implementation, ExecutionContext(), *args);
    ASSERT_TRUE(status.ok()) << variant.label << ": " << status;
    ASSERT_TRUE(y.GuardsIntact()) << variant.label;
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, LinearGelu, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

// The forms differ by 1.0e-4 at 2 and by 4.7e-4 at 2.7 of either sign: neither stands for the
// other.
TEST_P(LinearGelu, EachFormIsItsOwn) {
  HostTensor w(GetParam(), {4, 1});
  const float arguments[] = {2, -2, 2.75, -2.75};
  for (int64_t n = 0; n < 4; ++n) w.set(n, 0, arguments[n]);
  HostTensor x(GetParam(), {1, 1});
  x.set(0, 0, 1);
  const double erf[] = {1.9544997361036416, -0.0455002638963584};
  const double tanh[] = {1.9545976940877752, -0.0454023059122248};
  EXPECT_NEAR(Gelu(GeluForm::kErf, 2), erf[0], 1e-15);
  EXPECT_NEAR(Gelu(GeluForm::kTanh, 2), tanh[0], 1e-15);
  const LinearWeight weight = Prepared(w, nullptr);
  ForEachVariant(weight, [&](const Variant& variant) {
    for (const GeluForm form : kForms) {
      HostTensor y(DType::kF32, {1, 4});
      Run(variant, x, weight, form, y);
      for (int64_t n = 0; n < 4; ++n) {
        const double want = Gelu(form, arguments[n]);
        EXPECT_NEAR(y.at(0, n), want, GeluRoundings(DType::kF32) * 0x1p-24 * std::fabs(want))
            << NameOf(form) << " at " << arguments[n] << " on " << variant.label;
      }
    }
  });
}

TEST_P(LinearGelu, NoInnerAxisGivesGeluOfTheBias) {
  const HostTensor w(GetParam(), {70, 0}), x(GetParam(), {3, 0});
  const HostTensor b = NormalTensor(GetParam(), {70}, 1);
  const LinearWeight plain = Prepared(w, nullptr), biased = Prepared(w, &b);
  ForEachVariant(plain, [&](const Variant& variant) {
    for (const GeluForm form : kForms) {
      HostTensor y(DType::kF32, {3, 70});
      Run(variant, x, plain, form, y);
      for (int64_t n = 0; n < 70; ++n) ASSERT_EQ(y.at(2, n), 0) << variant.label;
      Run(variant, x, biased, form, y);
      for (int64_t n = 0; n < 70; ++n) {
        const double want = Gelu(form, b.at(0, n));
        ASSERT_NEAR(y.at(2, n), want, 17 * 0x1p-24 * std::fabs(want)) << variant.label;
      }
    }
  });
}

TEST_P(LinearGelu, InfinitiesAndNanStayInTheirRow) {
  HostTensor w(GetParam(), {2, 1});
  w.set(0, 0, 1);
  w.set(1, 0, -1);
  HostTensor x(GetParam(), {4, 1});
  x.set(0, 0, HUGE_VALF);
  x.set(1, 0, NAN);
  x.set(2, 0, 1e4f);
  x.set(3, 0, 0);
  const LinearWeight weight = Prepared(w, nullptr);
  ForEachVariant(weight, [&](const Variant& variant) {
    for (const GeluForm form : kForms) {
      HostTensor y(GetParam(), {4, 2});
      Run(variant, x, weight, form, y);
      EXPECT_EQ(y.at(0, 0), HUGE_VAL) << variant.label;
      EXPECT_EQ(y.at(0, 1), 0) << variant.label;
      EXPECT_TRUE(std::isnan(y.at(1, 0)) && std::isnan(y.at(1, 1))) << variant.label;
      EXPECT_EQ(y.at(2, 0), x.at(2, 0)) << variant.label;
      EXPECT_EQ(y.at(2, 1), 0) << variant.label;
      EXPECT_EQ(y.at(3, 0), 0) << variant.label;
    }
  });
}

// The product into FP32, then the kernel: the same sums and the same function. The FP64 reference
// rounds nothing between.
TEST_P(LinearGelu, IsGeluOfTheProduct) {
  uint32_t seed = 100;
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {5, 67, 129}, {50, 130, 64}, {1, 576, 300}}) {
    const HostTensor w =
        NormalTensor(GetParam(), {n, k}, ++seed, 2 / std::sqrt(static_cast<float>(k)));
    const HostTensor b = NormalTensor(GetParam(), {n}, ++seed);
    const HostTensor x = NormalTensor(GetParam(), {m, k}, ++seed);
    const LinearWeight weight = Prepared(w, &b);
    ForEachVariant(weight, [&](const Variant& variant) {
      if (variant.implementation == "reference") return;
      HostTensor sums(DType::kF32, {m, n});
      const auto args = CheckLinear(x.view(), weight, sums.view());
      ASSERT_TRUE(args.ok());
      ASSERT_TRUE(
          RunNamed(LinearImplementations(), variant.implementation, ExecutionContext(), *args)
              .ok());
      for (const GeluForm form : kForms) {
        for (const DType y_dtype : {GetParam(), DType::kF32}) {
          HostTensor fused(y_dtype, {m, n}, 3), composed(y_dtype, {m, n});
          Run(variant, x, weight, form, fused);
          const ConstTensorView in = sums.view();
          const absl::Status status = form == GeluForm::kErf ? GeluErf({}, in, composed.view())
                                                             : GeluTanh({}, in, composed.view());
          ASSERT_TRUE(status.ok()) << status;
          ASSERT_TRUE(SameRows(fused, 0, composed, 0, m)) << variant.label << " N " << n;
          // A row alone.
          HostTensor last(GetParam(), {1, k}), alone(y_dtype, {1, n});
          std::memcpy(last.row(0), x.row(m - 1), x.row_bytes());
          Run(variant, last, weight, form, alone);
          ASSERT_TRUE(SameRows(fused, m - 1, alone, 0, 1)) << variant.label << " N " << n;
        }
      }
    });
  }
}

// The sum's error times GELU's slope, at most 1.13, GELU's own, and the result's rounding; no
// further from the exact value than PyTorch's and one such unit.
TEST_P(LinearGelu, ValuesAreThoseOfPyTorch) {
  auto file = SafetensorsFile::Open("tests/numerics/products/torch_linear_gelu.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto get = [&](const std::string& operand) {
    const auto view = file->Find(absl::StrCat(std::string(Traits(GetParam()).label), ".", operand));
    EXPECT_TRUE(view.ok()) << view.status();
    HostTensor tensor(view->dtype, {view->dims().begin(), view->dims().end()});
    std::memcpy(tensor.row(0), view->data,
                static_cast<size_t>(view->elements() * SizeOf(view->dtype)));
    return tensor;
  };
  const HostTensor x = get("x"), w = get("weight"), b = get("bias");
  const LinearWeight weight = Prepared(w, &b);
  for (const GeluForm form : kForms) {
    const HostTensor exact = get(absl::StrCat(NameOf(form), "_exact")), torch = get(NameOf(form));
    ForEachVariant(weight, [&](const Variant& variant) {
      HostTensor y(GetParam(), {x.rows(), w.rows()});
      Run(variant, x, weight, form, y);
      double ours = 0, theirs = 0;
      for (int64_t m = 0; m < y.rows(); ++m) {
        for (int64_t n = 0; n < y.cols(); ++n) {
          Bounded sum = ExactProduct(w, n, ExactRow(x, m));
          const double want = exact.at(m, n), norm = sum.norm + std::fabs(b.at(0, n));
          double bound = 1.13 * (sum.error + 0x1p-24 * norm);
          bound += (GeluRoundings(GetParam()) + 1) * 0x1p-24 * std::fabs(want);
          bound += HalfSpacing(GetParam(), std::fabs(want) + bound);
          const double error = std::fabs(y.at(m, n) - want);
          EXPECT_LE(error, bound) << NameOf(form) << " on " << variant.label << " " << m << ", "
                                  << n;
          const double unit = Traits(GetParam()).epsilon * norm;
          ours = std::max(ours, error / unit);
          theirs = std::max(theirs, std::fabs(torch.at(m, n) - want) / unit);
        }
      }
      EXPECT_LE(ours, theirs + 1) << NameOf(form) << " on " << variant.label;
      RecordProperty(absl::StrCat("linear_bias_gelu ", NameOf(form), " ", variant.label),
                     absl::StrCat("largest error ", ours, ", PyTorch's ", theirs));
    });
  }
}

TEST(LinearGeluRefusals, AreTheProducts) {
  float memory[16] = {};
  const auto weight =
      LinearWeight::Prepare(Device(), ConstTensorView(memory, DType::kF32, {3, 2}), std::nullopt);
  ASSERT_TRUE(weight.ok());
  const absl::Status status =
      LinearBiasGelu({}, ConstTensorView(memory, DType::kF32, {1, 3}), *weight, GeluForm::kErf,
                     TensorView(memory + 8, DType::kF32, {1, 3}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("x: expected 2 columns"));
  EXPECT_TRUE(LinearBiasGelu({}, ConstTensorView(memory, DType::kF32, {0, 2}), *weight,
                             GeluForm::kErf, TensorView(memory + 8, DType::kF32, {0, 3}))
                  .ok());
}

}  // namespace
}  // namespace fuseblock::testing
