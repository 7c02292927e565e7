// The feed-forward networks of every form: worked examples, FP64 within the bound, rounding modes,
// a row's bits, the workspace's bounds, refusals.
#include "kernels/feed_forward/feed_forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "hwy/targets.h"
#include "kernels/geglu/geglu.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "kernels/linear_bias_gelu/linear_bias_gelu.h"
#include "kernels/mlp_geglu/mlp_geglu.h"
#include "kernels/mlp_gelu/mlp_gelu.h"
#include "kernels/mlp_swiglu/mlp_swiglu.h"
#include "kernels/silu/silu.h"
#include "kernels/swiglu/swiglu.h"
#include "server/engine/cpu_team.h"
#include "tests/support/exact_mlp.h"
#include "tests/support/numerics_variants.h"
#include "tests/support/workspace.h"

namespace fuseblock::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Rounding kRoundings[] = {Rounding::kFused, Rounding::kHf};

struct Mlp {
  FeedForwardForm form;
  HostTensor gate, up, down;
  std::optional<HostTensor> up_bias, down_bias;
  FeedForwardWeights weights;

  MlpTensors tensors() const {
    return {
        form, &gate, &up, &down, up_bias ? &*up_bias : nullptr, down_bias ? &*down_bias : nullptr};
  }
};

LinearWeight Prepared(const HostTensor& weight, const std::optional<HostTensor>& bias = {}) {
  std::optional<ConstTensorView> bias_view;
  if (bias) bias_view = bias->view();
  absl::StatusOr<LinearWeight> prepared = LinearWeight::Prepare(Device(), weight.view(), bias_view);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return *std::move(prepared);
}

// A dense form leaves the gate out.
Mlp MakeMlp(FeedForwardForm form, HostTensor gate, HostTensor up, HostTensor down,
            std::optional<HostTensor> up_bias = {}, std::optional<HostTensor> down_bias = {}) {
  FeedForwardWeights weights;
  weights.form = form;
  if (EntryOf(form).gated) weights.gate = Prepared(gate);
  weights.up = Prepared(up, up_bias);
  weights.down = Prepared(down, down_bias);
  return {form,
          std::move(gate),
          std::move(up),
          std::move(down),
          std::move(up_bias),
          std::move(down_bias),
          std::move(weights)};
}

struct Tested {
  FeedForwardForm form;
  bool biased;
  DType dtype;
};

Mlp NormalMlp(const Tested& tested, int64_t hidden, int64_t intermediate, uint32_t seed) {
  const DType dtype = tested.dtype;
  const float in = 1 / std::sqrt(static_cast<float>(hidden));
  const float out = 1 / std::sqrt(static_cast<float>(intermediate));
  std::optional<HostTensor> up_bias, down_bias;
  if (tested.biased) {
    up_bias = NormalTensor(dtype, {intermediate}, seed + 3);
    down_bias = NormalTensor(dtype, {hidden}, seed + 4);
  }
  return MakeMlp(tested.form, NormalTensor(dtype, {intermediate, hidden}, seed, 2 * in),
                 NormalTensor(dtype, {intermediate, hidden}, seed + 1, in),
                 NormalTensor(dtype, {hidden, intermediate}, seed + 2, out), std::move(up_bias),
                 std::move(down_bias));
}

void RunMlp(const ConstTensorView& x, const Mlp& mlp, Rounding rounding, const TensorView& y,
            const ParallelFor& parallel_for = {}) {
  Workspace workspace(FeedForwardWorkspaceBytes(mlp.weights, x.rows(), rounding));
  const ExecutionContext context{Device(), nullptr, parallel_for};
  const absl::Status status = FeedForward(context, x, mlp.weights, rounding, y, workspace.span());
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(workspace.GuardsIntact());
}

class FeedForwardTest : public ::testing::TestWithParam<Tested> {
 protected:
  DType dtype() const { return GetParam().dtype; }
  bool gated() const { return EntryOf(GetParam().form).gated; }
  bool erf() const { return EntryOf(GetParam().form).activation == Activation::kGeluErf; }
};

std::vector<Tested> AllTested() {
  std::vector<Tested> all;
  for (const FeedForwardFormEntry& entry : kFeedForwardForms) {
    for (const DType dtype : kFloatDTypes) {
      all.push_back({entry.form, false, dtype});
      if (!entry.gated) all.push_back({entry.form, true, dtype});
    }
  }
  return all;
}

std::string NameOf(const Tested& tested) {
  const FeedForwardFormEntry& entry = EntryOf(tested.form);
  const char* of = entry.activation == Activation::kSilu      ? ""
                   : entry.activation == Activation::kGeluErf ? "_erf"
                                                              : "_tanh";
  return absl::StrCat(entry.kernel, of, tested.biased ? "_biased_" : "_",
                      std::string(Name(tested.dtype)));
}

INSTANTIATE_TEST_SUITE_P(Forms, FeedForwardTest, ::testing::ValuesIn(AllTested()),
                         [](const auto& tested) { return NameOf(tested.param); });

HostTensor One(DType dtype, float value) {
  HostTensor tensor(dtype, {1, 1});
  tensor.set(0, 0, value);
  return tensor;
}

HostTensor OneBias(DType dtype, float value) {
  HostTensor tensor(dtype, {1});
  tensor.set(0, 0, value);
  return tensor;
}

// The examples of the kernels' headers, by the kernels' own functions.
TEST(FeedForwardExamples, OfTheHeaders) {
  const struct {
    decltype(&MlpSwiGlu) kernel;
    FeedForwardForm form;
    float x, up_bias, down_bias;
    double y, inner;
  } examples[] = {
      {MlpSwiGlu, FeedForwardForm::kSwiGlu, 1, 0, 0, 0.7310585786300049, 0.7310585786300049},
      {MlpGeGlu, FeedForwardForm::kGeGluErf, 2, 0, 0, 3.908999472207283, 3.908999472207283},
      {MlpGeGlu, FeedForwardForm::kGeGluTanh, 2, 0, 0, 3.90919538817555, 3.90919538817555},
      {MlpGelu, FeedForwardForm::kGeluErf, 1, 1, 3, 4.954499736103642, 1.9544997361036416},
      {MlpGelu, FeedForwardForm::kGeluTanh, 1, 1, 3, 4.954597694087775, 1.9545976940877752},
  };
  for (const auto& example : examples) {
    for (const DType dtype : kFloatDTypes) {
      std::optional<HostTensor> up_bias, down_bias;
      if (example.up_bias != 0) up_bias = OneBias(dtype, example.up_bias);
      if (example.down_bias != 0) down_bias = OneBias(dtype, example.down_bias);
      const Mlp mlp = MakeMlp(example.form, One(dtype, 1), One(dtype, 1), One(dtype, 1),
                              std::move(up_bias), std::move(down_bias));
      const HostTensor x = One(dtype, example.x);
      for (const Rounding rounding : kRoundings) {
        HostTensor y(dtype, {1, 1});
        Workspace workspace(FeedForwardWorkspaceBytes(mlp.weights, 1, rounding));
        const absl::Status status =
            example.kernel({}, x.view(), mlp.weights, rounding, y.view(), workspace.span());
        ASSERT_TRUE(status.ok()) << status;
        // kHf rounds gelu too, which is then up to twice as large.
        const double bound = HalfSpacing(dtype, example.y) + 3 * HalfSpacing(dtype, example.inner) +
                             130 * 0x1p-24 * example.inner;
        EXPECT_NEAR(y.at(0, 0), example.y, bound) << EntryOf(example.form).name;
      }
    }
  }
}

// The two forms of GELU differ by more than their roundings at 2.75.
TEST(FeedForwardExamples, NoFormStandsForAnother) {
  const DType dtype = DType::kF32;
  std::vector<double> values;
  for (const FeedForwardFormEntry& entry : kFeedForwardForms) {
    const Mlp mlp = MakeMlp(entry.form, One(dtype, 1), One(dtype, 1), One(dtype, 1));
    HostTensor y(dtype, {1, 1});
    RunMlp(One(dtype, 2.75f).view(), mlp, Rounding::kFused, y.view());
    values.push_back(y.at(0, 0));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_GT(std::fabs(values[i] - values[j]), 4e-4);
  }
  const Mlp erf = MakeMlp(FeedForwardForm::kGeGluErf, One(dtype, 1), One(dtype, 1), One(dtype, 1));
  HostTensor y(dtype, {1, 1});
  Workspace workspace(FeedForwardWorkspaceBytes(erf.weights, 1, Rounding::kFused));
  for (const auto kernel : {MlpSwiGlu, MlpGelu}) {
    const absl::Status status =
        kernel({}, One(dtype, 1).view(), erf.weights, Rounding::kFused, y.view(), workspace.span());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("weights.form: expected "), HasSubstr("got GeGLU (erf)")));
  }
}

// Every implementation on every instruction set against FP64.
TEST_P(FeedForwardTest, WithinTheBoundOfItsRoundings) {
  std::vector<Variant> variants;  // the reference, and the composed one on each target
  for (const Variant& variant : Variants(DescribeList(SwiGluImplementations()))) {
    if (variant.device != DeviceType::kCpu) continue;
    variants.push_back(variant);
    if (variant.simd_target != 0) variants.back().implementation = "composed";
  }
  const struct {
    int64_t hidden, intermediate, rows;
  } shapes[] = {{1, 1, 3}, {3, 5, 2}, {64, 128, 3}, {70, 149, 9}, {130, 65, 50}};
  uint32_t seed = 0;
  for (const auto& shape : shapes) {
    const Mlp mlp = NormalMlp(GetParam(), shape.hidden, shape.intermediate, seed += 10);
    const HostTensor x = NormalTensor(dtype(), {shape.rows, shape.hidden}, seed + 5);
    for (const Rounding rounding : kRoundings) {
      for (const DType y_dtype : {dtype(), DType::kF32}) {
        if (rounding == Rounding::kHf && y_dtype != dtype()) continue;
        std::vector<std::vector<Bounded>> exact;
        for (int64_t m = 0; m < shape.rows; ++m) {
          exact.push_back(ExactMlp(mlp.tensors(), rounding, ExactRow(x, m), y_dtype));
        }
        for (const Variant& variant : variants) {
          HostTensor y(y_dtype, {shape.rows, shape.hidden}, 3);
          Workspace workspace(FeedForwardWorkspaceBytes(mlp.weights, shape.rows, rounding));
          const ScopedVariant scoped(variant);
          const absl::Status status = RunNamed(
              FeedForwardImplementations(), variant.implementation, ExecutionContext(),
              FeedForwardArgs{x.view(), &mlp.weights, rounding, y.view(), workspace.span()});
          ASSERT_TRUE(status.ok()) << variant.label << ": " << status;
          ASSERT_TRUE(y.GuardsIntact());
          for (int64_t m = 0; m < shape.rows; ++m) {
            for (int64_t n = 0; n < shape.hidden; ++n) {
              const Bounded& want = exact[static_cast<size_t>(m)][static_cast<size_t>(n)];
              ASSERT_LE(std::fabs(y.at(m, n) - want.value), want.error)
                  << variant.label << ", seed " << seed << ", y[" << m << ", " << n << "] of "
                  << shape.hidden << "/" << shape.intermediate << ": " << y.at(m, n) << ", exact "
                  << want.value;
            }
          }
        }
      }
    }
  }
}

// Where the mode says that a tensor is stored, the bits are those of the kernels called one by one.
TEST_P(FeedForwardTest, IsTheCompositionOfItsKernels) {
  const Mlp mlp = NormalMlp(GetParam(), 70, 149, 1);
  const HostTensor x = NormalTensor(dtype(), {9, 70}, 5);
  const GeluForm gelu = erf() ? GeluForm::kErf : GeluForm::kTanh;
  const bool silu = GetParam().form == FeedForwardForm::kSwiGlu;
  const auto activated = [&](HostTensor& of) {
    HostTensor out(dtype(), {9, 149});
    const auto kernel = silu ? Silu : erf() ? GeluErf : GeluTanh;
    EXPECT_TRUE(kernel({}, of.view(), out.view()).ok());
    return out;
  };
  for (const Rounding rounding : kRoundings) {
    const bool fused = rounding == Rounding::kFused;
    const DType inner = fused ? DType::kF32 : dtype();
    HostTensor gate(inner, {9, 149}), up(inner, {9, 149}), product(dtype(), {9, 149});
    HostTensor want(dtype(), {9, 70});
    ASSERT_TRUE(Linear({}, x.view(), mlp.weights.up, up.view()).ok());
    if (gated()) {
      ASSERT_TRUE(Linear({}, x.view(), mlp.weights.gate, gate.view()).ok());
    }
    if (!gated()) {  // of up's FP32 sum or of what is stored of it
      product = activated(up);
    } else if (!fused) {  // the activation is a tensor of its own
      const HostTensor stored = activated(gate);
      for (int64_t m = 0; m < 9; ++m) {
        for (int64_t n = 0; n < 149; ++n) {
          product.set(m, n, static_cast<float>(stored.at(m, n)) * static_cast<float>(up.at(m, n)));
        }
      }
    } else if (silu) {
      ASSERT_TRUE(SwiGlu({}, gate.view(), up.view(), rounding, product.view()).ok());
    } else {
      ASSERT_TRUE(GeGlu({}, gate.view(), up.view(), gelu, rounding, product.view()).ok());
    }
    ASSERT_TRUE(Linear({}, product.view(), mlp.weights.down, want.view()).ok());
    HostTensor y(dtype(), {9, 70});
    RunMlp(x.view(), mlp, rounding, y.view());
    EXPECT_TRUE(SameRows(y, 0, want, 0, 9)) << (fused ? "fused" : "hf");
  }
}

TEST_P(FeedForwardTest, ARowsBitsAreItsOwn) {
  CpuTeam team(2);
  constexpr int64_t kRows = 80;
  const Mlp mlp = NormalMlp(GetParam(), 70, 149, 1);
  const HostTensor x = NormalTensor(dtype(), {kRows, 70}, 5);
  for (const Rounding rounding : kRoundings) {
    HostTensor alone(dtype(), {kRows, 70});
    for (int64_t m = 0; m < kRows; ++m) {
      RunMlp(ConstTensorView(x.row(m), dtype(), {1, 70}), mlp, rounding,
             TensorView(alone.row(m), dtype(), {1, 70}));
    }
    for (int64_t count = 1; count <= kRows; ++count) {
      for (const int64_t first : {int64_t{0}, (kRows - count) / 2, kRows - count}) {
        HostTensor y(dtype(), {count, 70}, 5, 2);
        HostTensor part(dtype(), {count, 70}, 3, 6);  // apart from one another, and misaligned
        for (int64_t m = 0; m < count; ++m) {
          std::memcpy(part.row(m), x.row(first + m), x.row_bytes());
        }
        RunMlp(part.view(), mlp, rounding, y.view(),
               count % 2 == 0 ? team.parallel_for() : ParallelFor());
        ASSERT_TRUE(SameRows(y, 0, alone, first, count)) << first << " + " << count;
        ASSERT_TRUE(y.GuardsIntact());
      }
    }
  }
}

// What is beyond FP16's largest value and nothing to the other dtypes: 255.9 * 261.75, or gelu of
// 1.5 * 65000.
TEST_P(FeedForwardTest, OverflowStaysInItsRow) {
  const Mlp mlp = MakeMlp(GetParam().form, One(dtype(), 255.9f),
                          One(dtype(), gated() ? 261.75f : 65000), One(dtype(), 1));
  HostTensor x(dtype(), {3, 1});
  x.fill(0.125f);
  x.set(1, 0, gated() ? 1 : 1.5f);
  for (const Rounding rounding : kRoundings) {
    HostTensor y(dtype(), {3, 1});
    RunMlp(x.view(), mlp, rounding, y.view());
    EXPECT_EQ(std::isinf(y.at(1, 0)), dtype() == DType::kF16);
    EXPECT_GT(y.at(1, 0), 0);
    EXPECT_TRUE(std::isfinite(y.at(0, 0)));
    EXPECT_EQ(y.at(0, 0), y.at(2, 0));
  }
}

TEST_P(FeedForwardTest, ANanStaysInItsRow) {
  const Mlp mlp = NormalMlp(GetParam(), 7, 66, 1);
  HostTensor x = NormalTensor(dtype(), {8, 7}, 5);
  for (const Rounding rounding : kRoundings) {
    HostTensor clean(dtype(), {8, 7}), y(dtype(), {8, 7});
    RunMlp(x.view(), mlp, rounding, clean.view());
    HostTensor bad = x;
    bad.set(3, 6, NAN);
    RunMlp(bad.view(), mlp, rounding, y.view());
    EXPECT_TRUE(SameRows(y, 0, clean, 0, 3));
    EXPECT_TRUE(SameRows(y, 4, clean, 4, 4));
    for (int64_t n = 0; n < 7; ++n) EXPECT_TRUE(std::isnan(y.at(3, n)));
  }
}

TEST(FeedForwardRounding, HfRoundsWhatFusedKeeps) {
  // gate = 1 + 2^-8 is a tie in BF16: `hf` stores 1, `fused` keeps it for silu. up = 1, down = 256.
  const DType dtype = DType::kBF16;
  HostTensor gate(dtype, {1, 2}), up(dtype, {1, 2}), down(dtype, {2, 1});
  gate.set(0, 0, 1);
  gate.set(0, 1, 0x1p-8f);
  up.set(0, 0, 1);
  up.set(0, 1, 0);
  down.fill(256);
  const Mlp mlp = MakeMlp(FeedForwardForm::kSwiGlu, gate, up, down);
  HostTensor x(dtype, {1, 2});
  x.fill(1);
  // silu(1.00390625) = 0.73468, silu(1) = 0.73106; a unit of BF16 there is 2^-8.
  HostTensor fused(dtype, {1, 2}), hf(dtype, {1, 2});
  RunMlp(x.view(), mlp, Rounding::kFused, fused.view());
  RunMlp(x.view(), mlp, Rounding::kHf, hf.view());
  EXPECT_EQ(fused.at(0, 0), 188);  // 0.734375 * 256
  EXPECT_EQ(hf.at(0, 0), 187);     // 0.73046875 * 256
}

TEST_P(FeedForwardTest, NoRowsAndLeadingAxes) {
  const Mlp mlp = NormalMlp(GetParam(), 4, 6, 1);
  HostTensor none(dtype(), {0, 4}), none_out(dtype(), {0, 4});
  EXPECT_TRUE(
      FeedForward({}, none.view(), mlp.weights, Rounding::kFused, none_out.view(), {}).ok());
  const HostTensor x = NormalTensor(dtype(), {6, 4}, 2);
  HostTensor flat(dtype(), {6, 4}), deep(dtype(), {2, 3, 4});
  RunMlp(x.view(), mlp, Rounding::kFused, flat.view());
  RunMlp(ConstTensorView(x.row(0), dtype(), {2, 3, 4}), mlp, Rounding::kFused, deep.view());
  EXPECT_TRUE(SameRows(deep, 0, flat, 0, 6));
}

TEST(FeedForwardWorkspace, GrowsWithTheRowsAndIsAligned) {
  const Mlp mlp = NormalMlp({FeedForwardForm::kSwiGlu, false, DType::kBF16}, 4, 6, 1);
  size_t before = 0;
  for (const int64_t rows : {0, 1, 2, 100}) {
    const size_t bytes = FeedForwardWorkspaceBytes(mlp.weights, rows, Rounding::kFused);
    EXPECT_EQ(bytes % 256, 0u);
    EXPECT_GE(bytes, before);
    before = bytes;
  }
  EXPECT_EQ(before, 2u * 2560 + 1280);  // gate and up in FP32, the product in BF16
  const Mlp dense = NormalMlp({FeedForwardForm::kGeluErf, true, DType::kBF16}, 4, 6, 1);
  for (const Rounding rounding : kRoundings) {  // the product alone
    EXPECT_EQ(FeedForwardWorkspaceBytes(dense.weights, 100, rounding), 1280u);
  }
}

TEST(FeedForwardCheck, NamesWhatDoesNotFit) {
  const DType dtype = DType::kBF16;
  const Mlp mlp = NormalMlp({FeedForwardForm::kSwiGlu, false, dtype}, 4, 6, 1);
  const HostTensor x = NormalTensor(dtype, {3, 4}, 2);
  HostTensor y(dtype, {3, 4});
  Workspace workspace(FeedForwardWorkspaceBytes(mlp.weights, 3, Rounding::kFused));
  const auto error = [&](const ConstTensorView& in, const FeedForwardWeights& weights,
                         Rounding rounding, const TensorView& out, absl::Span<std::byte> space) {
    const absl::Status status = FeedForward({}, in, weights, rounding, out, space);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const Rounding fused = Rounding::kFused;
  FeedForwardWeights bad{Prepared(mlp.gate), Prepared(mlp.up),
                         Prepared(NormalTensor(dtype, {4, 7}, 1))};
  EXPECT_THAT(error(x.view(), bad, fused, y.view(), workspace.span()),
              AllOf(HasSubstr("down: expected [4, 6] BF16"), HasSubstr("[4, 7]")));
  bad.down = Prepared(mlp.down);
  bad.up = Prepared(NormalTensor(DType::kF16, {6, 4}, 1));
  EXPECT_THAT(error(x.view(), bad, fused, y.view(), workspace.span()),
              AllOf(HasSubstr("up: expected [6, 4] BF16"), HasSubstr("FP16")));
  HostTensor wide(DType::kF32, {3, 4});
  EXPECT_THAT(error(x.view(), mlp.weights, Rounding::kHf, wide.view(), workspace.span()),
              AllOf(HasSubstr("y: expected BF16"), HasSubstr("FP32")));
  const HostTensor narrow = NormalTensor(dtype, {3, 3}, 2);
  EXPECT_THAT(error(narrow.view(), mlp.weights, fused, y.view(), workspace.span()),
              AllOf(HasSubstr("x: expected 4 columns"), HasSubstr("[3, 3]")));
  EXPECT_THAT(error(wide.view(), mlp.weights, fused, y.view(), workspace.span()),
              AllOf(HasSubstr("x: expected BF16"), HasSubstr("FP32")));
  HostTensor more(dtype, {4, 4});
  EXPECT_THAT(error(x.view(), mlp.weights, fused, more.view(), workspace.span()),
              AllOf(HasSubstr("y"), HasSubstr("[4, 4]")));
  EXPECT_THAT(error(y.view(), mlp.weights, fused, y.view(), workspace.span()),
              HasSubstr("y: must not overlap x"));
  EXPECT_THAT(error(x.view(), mlp.weights, fused, y.view(),
                    workspace.span().first(workspace.span().size() - 1)),
              AllOf(HasSubstr("workspace: expected "), HasSubstr("bytes, got ")));
  Workspace larger(workspace.span().size() + 64);
  EXPECT_THAT(error(x.view(), mlp.weights, fused, y.view(), larger.span().subspan(64)),
              HasSubstr("256-byte"));
}

}  // namespace
}  // namespace fuseblock::testing
