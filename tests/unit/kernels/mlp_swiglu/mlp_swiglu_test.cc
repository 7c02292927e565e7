// The SwiGLU feed-forward: worked example, FP64 within the bound, rounding modes, a row's bits, the
// workspace's bounds, refusals.
#include "kernels/mlp_swiglu/mlp_swiglu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hwy/targets.h"
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
  HostTensor gate, up, down;
  MlpSwiGluWeights weights;
};

LinearWeight Prepared(const HostTensor& weight) {
  absl::StatusOr<LinearWeight> prepared =
      LinearWeight::Prepare(Device(), weight.view(), std::nullopt);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return *std::move(prepared);
}

Mlp MakeMlp(HostTensor gate, HostTensor up, HostTensor down) {
  MlpSwiGluWeights weights{Prepared(gate), Prepared(up), Prepared(down)};
  return {std::move(gate), std::move(up), std::move(down), std::move(weights)};
}

Mlp NormalMlp(DType dtype, int64_t hidden, int64_t intermediate, uint32_t seed) {
  const float in = 1 / std::sqrt(static_cast<float>(hidden));
  const float out = 1 / std::sqrt(static_cast<float>(intermediate));
  return MakeMlp(NormalTensor(dtype, {intermediate, hidden}, seed, 2 * in),
                 NormalTensor(dtype, {intermediate, hidden}, seed + 1, in),
                 NormalTensor(dtype, {hidden, intermediate}, seed + 2, out));
}

void RunMlp(const ConstTensorView& x, const Mlp& mlp, Rounding rounding, const TensorView& y,
            const ParallelFor& parallel_for = {}) {
  Workspace workspace(MlpSwiGluWorkspaceBytes(mlp.weights, x.rows(), rounding));
  const ExecutionContext context{Device(), nullptr, parallel_for};
  const absl::Status status = MlpSwiGlu(context, x, mlp.weights, rounding, y, workspace.span());
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(workspace.GuardsIntact());
}

class MlpSwiGluTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, MlpSwiGluTest, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

HostTensor One(DType dtype, float value) {
  HostTensor tensor(dtype, {1, 1});
  tensor.set(0, 0, value);
  return tensor;
}

TEST_P(MlpSwiGluTest, WorkedExample) {
  const Mlp mlp = MakeMlp(One(GetParam(), 1), One(GetParam(), 1), One(GetParam(), 1));
  const HostTensor x = One(GetParam(), 1);
  for (const Rounding rounding : kRoundings) {
    HostTensor y(GetParam(), {1, 1});
    RunMlp(x.view(), mlp, rounding, y.view());
    const double silu = 0.7310585786300049;
    EXPECT_NEAR(y.at(0, 0), silu, HalfSpacing(GetParam(), silu) + 9 * 0x1p-24);
  }
}

// Every implementation on every instruction set against FP64.
TEST_P(MlpSwiGluTest, WithinTheBoundOfItsRoundings) {
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
    const HostTensor x = NormalTensor(GetParam(), {shape.rows, shape.hidden}, seed + 5);
    for (const Rounding rounding : kRoundings) {
      for (const DType y_dtype : {GetParam(), DType::kF32}) {
        if (rounding == Rounding::kHf && y_dtype != GetParam()) continue;
        std::vector<std::vector<Bounded>> exact;
        for (int64_t m = 0; m < shape.rows; ++m) {
          exact.push_back(ExactMlp(mlp.gate, mlp.up, mlp.down, rounding, ExactRow(x, m), y_dtype));
        }
        for (const Variant& variant : variants) {
          HostTensor y(y_dtype, {shape.rows, shape.hidden}, 3);
          Workspace workspace(MlpSwiGluWorkspaceBytes(mlp.weights, shape.rows, rounding));
          const ScopedVariant scoped(variant);
          const absl::Status status =
              RunNamed(MlpSwiGluImplementations(), variant.implementation, ExecutionContext(),
                       MlpSwiGluArgs{x.view(), &mlp.weights, rounding, y.view(), workspace.span()});
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
TEST_P(MlpSwiGluTest, IsTheCompositionOfItsKernels) {
  const DType dtype = GetParam();
  const Mlp mlp = NormalMlp(dtype, 70, 149, 1);
  const HostTensor x = NormalTensor(dtype, {9, 70}, 5);
  for (const Rounding rounding : kRoundings) {
    const DType inner = rounding == Rounding::kFused ? DType::kF32 : dtype;
    HostTensor gate(inner, {9, 149}), up(inner, {9, 149}), product(dtype, {9, 149});
    HostTensor want(dtype, {9, 70});
    ASSERT_TRUE(Linear({}, x.view(), mlp.weights.gate, gate.view()).ok());
    ASSERT_TRUE(Linear({}, x.view(), mlp.weights.up, up.view()).ok());
    if (rounding == Rounding::kFused) {
      ASSERT_TRUE(SwiGlu({}, gate.view(), up.view(), rounding, product.view()).ok());
    } else {  // silu is a tensor of its own
      HostTensor silu(dtype, {9, 149});
      ASSERT_TRUE(Silu({}, gate.view(), silu.view()).ok());
      for (int64_t m = 0; m < 9; ++m) {
        for (int64_t n = 0; n < 149; ++n) {
          product.set(m, n, static_cast<float>(silu.at(m, n)) * static_cast<float>(up.at(m, n)));
        }
      }
    }
    ASSERT_TRUE(Linear({}, product.view(), mlp.weights.down, want.view()).ok());
    HostTensor y(dtype, {9, 70});
    RunMlp(x.view(), mlp, rounding, y.view());
    EXPECT_TRUE(SameRows(y, 0, want, 0, 9)) << (rounding == Rounding::kHf ? "hf" : "fused");
  }
}

TEST_P(MlpSwiGluTest, ARowsBitsAreItsOwn) {
  CpuTeam team(2);
  constexpr int64_t kRows = 80;
  const Mlp mlp = NormalMlp(GetParam(), 70, 149, 1);
  const HostTensor x = NormalTensor(GetParam(), {kRows, 70}, 5);
  for (const Rounding rounding : kRoundings) {
    HostTensor alone(GetParam(), {kRows, 70});
    for (int64_t m = 0; m < kRows; ++m) {
      RunMlp(ConstTensorView(x.row(m), GetParam(), {1, 70}), mlp, rounding,
             TensorView(alone.row(m), GetParam(), {1, 70}));
    }
    for (int64_t count = 1; count <= kRows; ++count) {
      for (const int64_t first : {int64_t{0}, (kRows - count) / 2, kRows - count}) {
        HostTensor y(GetParam(), {count, 70}, 5, 2);
        HostTensor part(GetParam(), {count, 70}, 3, 6);  // apart from one another, and misaligned
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

// silu(255.9) * 261.75 is beyond FP16's largest value and is nothing to the other dtypes.
TEST_P(MlpSwiGluTest, OverflowStaysInItsRow) {
  const Mlp mlp = MakeMlp(One(GetParam(), 255.9f), One(GetParam(), 261.75f), One(GetParam(), 1));
  HostTensor x(GetParam(), {3, 1});
  x.fill(0.125f);
  x.set(1, 0, 1);
  for (const Rounding rounding : kRoundings) {
    HostTensor y(GetParam(), {3, 1});
    RunMlp(x.view(), mlp, rounding, y.view());
    EXPECT_EQ(std::isinf(y.at(1, 0)), GetParam() == DType::kF16);
    EXPECT_GT(y.at(1, 0), 0);
    EXPECT_TRUE(std::isfinite(y.at(0, 0)));
    EXPECT_EQ(y.at(0, 0), y.at(2, 0));
  }
}

TEST_P(MlpSwiGluTest, ANanStaysInItsRow) {
  const Mlp mlp = NormalMlp(GetParam(), 7, 66, 1);
  HostTensor x = NormalTensor(GetParam(), {8, 7}, 5);
  for (const Rounding rounding : kRoundings) {
    HostTensor clean(GetParam(), {8, 7}), y(GetParam(), {8, 7});
    RunMlp(x.view(), mlp, rounding, clean.view());
    HostTensor bad = x;
    bad.set(3, 6, NAN);
    RunMlp(bad.view(), mlp, rounding, y.view());
    EXPECT_TRUE(SameRows(y, 0, clean, 0, 3));
    EXPECT_TRUE(SameRows(y, 4, clean, 4, 4));
    for (int64_t n = 0; n < 7; ++n) EXPECT_TRUE(std::isnan(y.at(3, n)));
  }
}

TEST(MlpSwiGluRounding, HfRoundsWhatFusedKeeps) {
  // gate = 1 + 2^-8 is a tie in BF16: `hf` stores 1, `fused` keeps it for silu. up = 1, down = 256.
  const DType dtype = DType::kBF16;
  HostTensor gate(dtype, {1, 2}), up(dtype, {1, 2}), down(dtype, {2, 1});
  gate.set(0, 0, 1);
  gate.set(0, 1, 0x1p-8f);
  up.set(0, 0, 1);
  up.set(0, 1, 0);
  down.fill(256);
  const Mlp mlp = MakeMlp(gate, up, down);
  HostTensor x(dtype, {1, 2});
  x.fill(1);
  // silu(1.00390625) = 0.73468, silu(1) = 0.73106; a unit of BF16 there is 2^-8.
  HostTensor fused(dtype, {1, 2}), hf(dtype, {1, 2});
  RunMlp(x.view(), mlp, Rounding::kFused, fused.view());
  RunMlp(x.view(), mlp, Rounding::kHf, hf.view());
  EXPECT_EQ(fused.at(0, 0), 188);  // 0.734375 * 256
  EXPECT_EQ(hf.at(0, 0), 187);     // 0.73046875 * 256
}

TEST_P(MlpSwiGluTest, NoRowsAndLeadingAxes) {
  const Mlp mlp = NormalMlp(GetParam(), 4, 6, 1);
  HostTensor none(GetParam(), {0, 4}), none_out(GetParam(), {0, 4});
  EXPECT_TRUE(MlpSwiGlu({}, none.view(), mlp.weights, Rounding::kFused, none_out.view(), {}).ok());
  const HostTensor x = NormalTensor(GetParam(), {6, 4}, 2);
  HostTensor flat(GetParam(), {6, 4}), deep(GetParam(), {2, 3, 4});
  RunMlp(x.view(), mlp, Rounding::kFused, flat.view());
  RunMlp(ConstTensorView(x.row(0), GetParam(), {2, 3, 4}), mlp, Rounding::kFused, deep.view());
  EXPECT_TRUE(SameRows(deep, 0, flat, 0, 6));
}

TEST(MlpSwiGluWorkspace, GrowsWithTheRowsAndIsAligned) {
  const Mlp mlp = NormalMlp(DType::kBF16, 4, 6, 1);
  size_t before = 0;
  for (const int64_t rows : {0, 1, 2, 100}) {
    const size_t bytes = MlpSwiGluWorkspaceBytes(mlp.weights, rows, Rounding::kFused);
    EXPECT_EQ(bytes % 256, 0u);
    EXPECT_GE(bytes, before);
    before = bytes;
  }
  EXPECT_EQ(before, 2u * 2560 + 1280);  // gate and up in FP32, the product in BF16
}

TEST(MlpSwiGluCheck, NamesWhatDoesNotFit) {
  const DType dtype = DType::kBF16;
  const Mlp mlp = NormalMlp(dtype, 4, 6, 1);
  const HostTensor x = NormalTensor(dtype, {3, 4}, 2);
  HostTensor y(dtype, {3, 4});
  Workspace workspace(MlpSwiGluWorkspaceBytes(mlp.weights, 3, Rounding::kFused));
  const auto error = [&](const ConstTensorView& in, const MlpSwiGluWeights& weights,
                         Rounding rounding, const TensorView& out, absl::Span<std::byte> space) {
    const absl::Status status = MlpSwiGlu({}, in, weights, rounding, out, space);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const Rounding fused = Rounding::kFused;
  MlpSwiGluWeights bad{Prepared(mlp.gate), Prepared(mlp.up),
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
              HasSubstr("in place"));
  EXPECT_THAT(error(x.view(), mlp.weights, fused, y.view(),
                    workspace.span().first(workspace.span().size() - 1)),
              AllOf(HasSubstr("workspace: expected "), HasSubstr("bytes, got ")));
  Workspace larger(workspace.span().size() + 64);
  EXPECT_THAT(error(x.view(), mlp.weights, fused, y.view(), larger.span().subspan(64)),
              HasSubstr("256-byte"));
}

}  // namespace
}  // namespace fuseblock::testing
