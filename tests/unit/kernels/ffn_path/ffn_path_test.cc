// The feed-forward path: worked example, both implementations within the bound of FP64, refusals.
#include "kernels/ffn_path/ffn_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/exact_mlp.h"
#include "tests/support/numerics_variants.h"
#include "tests/support/workspace.h"

namespace fuseblock::testing {
namespace {

using ::testing::HasSubstr;

constexpr float kEps = 1e-5f;

struct Path {
  HostTensor norm, gate, up, down;
  FeedForwardWeights weights;
};

LinearWeight Prepared(const HostTensor& weight) {
  absl::StatusOr<LinearWeight> prepared =
      LinearWeight::Prepare(Device(), weight.view(), std::nullopt);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return *std::move(prepared);
}

Path MakePath(HostTensor norm, HostTensor gate, HostTensor up, HostTensor down) {
  FeedForwardWeights weights{Prepared(gate), Prepared(up), Prepared(down)};
  return {std::move(norm), std::move(gate), std::move(up), std::move(down), std::move(weights)};
}

Path NormalPath(DType dtype, int64_t hidden, int64_t intermediate, uint32_t seed) {
  const float in = 1 / std::sqrt(static_cast<float>(hidden));
  const float out = 1 / std::sqrt(static_cast<float>(intermediate));
  return MakePath(NormalTensor(dtype, {hidden}, seed, 1),
                  NormalTensor(dtype, {intermediate, hidden}, seed + 1, 2 * in),
                  NormalTensor(dtype, {intermediate, hidden}, seed + 2, in),
                  NormalTensor(dtype, {hidden, intermediate}, seed + 3, out));
}

FfnPathArgs ArgsOf(const Path& path, const HostTensor& x, const HostTensor* residual,
                   Rounding rounding, const HostTensor& y, absl::Span<std::byte> workspace) {
  FfnPathArgs args;
  args.x = x.view();
  if (residual != nullptr) args.residual = residual->view();
  args.norm = path.norm.view();
  args.params.eps = kEps;
  if (rounding == Rounding::kHf) args.params.form = RmsNormForm::kNormalisedFirst;
  args.weights = &path.weights;
  args.rounding = rounding;
  args.y = const_cast<HostTensor&>(y).view();
  args.workspace = workspace;
  return args;
}

class FfnPathTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, FfnPathTest, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

TEST_P(FfnPathTest, WorkedExample) {
  const auto one = [](std::initializer_list<int64_t> dims, float value) {
    HostTensor tensor(GetParam(), dims);
    tensor.set(0, 0, value);
    return tensor;
  };
  const Path path = MakePath(one({1}, 1), one({1, 1}, 1), one({1, 1}, 1), one({1, 1}, 1));
  const HostTensor x = one({1, 1}, 2);
  for (const Rounding rounding : {Rounding::kFused, Rounding::kHf}) {
    HostTensor y(GetParam(), {1, 1});
    Workspace workspace(FfnPathWorkspaceBytes(path.weights, 1, rounding));
    const absl::Status status =
        FfnPath({}, ArgsOf(path, x, nullptr, rounding, y, workspace.span()));
    ASSERT_TRUE(status.ok()) << status;
    // n = 1 but for eps and its rounding; silu's slope at 1, times up's, is below 2.
    const double slack = 2 * (kEps + Traits(GetParam()).epsilon) + HalfSpacing(GetParam(), 2.73);
    EXPECT_NEAR(y.at(0, 0), 2.7310585786300049, slack + 20 * 0x1p-24);
  }
}

// y[m, :], with what each output may differ by.
std::vector<Bounded> ExactPath(const Path& path, const HostTensor& x, const HostTensor* residual,
                               Rounding rounding, int64_t m) {
  const DType dtype = x.dtype();
  const bool hf = rounding == Rounding::kHf;
  std::vector<Bounded> h = ExactRow(x, m);
  double squares = 0;
  for (size_t k = 0; k < h.size(); ++k) {
    if (residual != nullptr) {
      h[k].value += residual->at(m, static_cast<int64_t>(k));
      h[k].error = 0x1p-24 * std::fabs(h[k].value);
      if (hf) h[k] = Stored(dtype, h[k]);
    }
    squares += h[k].value * h[k].value;
  }
  const double scale = 1 / std::sqrt(squares / static_cast<double>(h.size()) + kEps);
  // The scale is off by no more than h is, relative to its norm, and by FP32's sum of a short row.
  double h_errors = 0;
  for (const Bounded& one : h) h_errors += one.error * one.error;
  const double of_scale = std::sqrt(h_errors / std::max(squares, 1e-30)) + 60 * 0x1p-24;
  std::vector<Bounded> n = h;
  for (size_t k = 0; k < n.size(); ++k) {
    n[k].error = scale * (h[k].error + of_scale * (std::fabs(h[k].value) + h[k].error));
    n[k].value = scale * h[k].value;
    if (hf) n[k] = Stored(dtype, n[k]);
    const double w = path.norm.at(0, static_cast<int64_t>(k));
    n[k].value *= w;
    n[k].error = n[k].error * std::fabs(w) + 2 * 0x1p-24 * std::fabs(n[k].value);
    n[k] = Stored(dtype, n[k]);
  }
  std::vector<Bounded> y = ExactMlp({path.weights.form, &path.gate, &path.up, &path.down}, rounding,
                                    n, hf ? dtype : DType::kF32);
  for (size_t k = 0; k < y.size(); ++k) {
    y[k].value += h[k].value;
    y[k].error += h[k].error + 0x1p-24 * std::fabs(y[k].value);
    y[k] = Stored(dtype, y[k]);
  }
  return y;
}

TEST_P(FfnPathTest, WithinTheBoundOfItsRoundings) {
  const struct {
    int64_t hidden, intermediate, rows;
  } shapes[] = {{1, 1, 3}, {3, 5, 2}, {64, 128, 3}, {70, 149, 9}};
  uint32_t seed = 0;
  for (const auto& shape : shapes) {
    const Path path = NormalPath(GetParam(), shape.hidden, shape.intermediate, seed += 10);
    const HostTensor x = NormalTensor(GetParam(), {shape.rows, shape.hidden}, seed + 5);
    const HostTensor residual = NormalTensor(GetParam(), {shape.rows, shape.hidden}, seed + 6);
    for (const HostTensor* added : {static_cast<const HostTensor*>(nullptr), &residual}) {
      for (const Rounding rounding : {Rounding::kFused, Rounding::kHf}) {
        for (const char* name : {"composed", "reference"}) {
          HostTensor y(GetParam(), {shape.rows, shape.hidden}, 3);
          Workspace workspace(FfnPathWorkspaceBytes(path.weights, shape.rows, rounding));
          const absl::Status status =
              RunNamed(FfnPathImplementations(), name, ExecutionContext(),
                       ArgsOf(path, x, added, rounding, y, workspace.span()));
          ASSERT_TRUE(status.ok()) << name << ": " << status;
          ASSERT_TRUE(y.GuardsIntact() && workspace.GuardsIntact());
          for (int64_t m = 0; m < shape.rows; ++m) {
            const std::vector<Bounded> exact = ExactPath(path, x, added, rounding, m);
            for (int64_t k = 0; k < shape.hidden; ++k) {
              const Bounded& want = exact[static_cast<size_t>(k)];
              ASSERT_LE(std::fabs(y.at(m, k) - want.value), want.error)
                  << name << ", seed " << seed << ", y[" << m << ", " << k << "] of "
                  << shape.hidden << "/" << shape.intermediate << ": " << y.at(m, k) << ", exact "
                  << want.value;
            }
          }
        }
      }
    }
  }
}

TEST(FfnPath, NoRowsAreNoWork) {
  const Path path = NormalPath(DType::kF32, 3, 5, 1);
  const HostTensor none(DType::kF32, {0, 3});
  EXPECT_TRUE(FfnPath({}, ArgsOf(path, none, nullptr, Rounding::kFused, none, {})).ok());
}

TEST(FfnPath, RefusesWhatDoesNotFit) {
  const Path path = NormalPath(DType::kF32, 3, 5, 1);
  const HostTensor x = NormalTensor(DType::kF32, {2, 3}, 2);
  const HostTensor wide = NormalTensor(DType::kF32, {2, 4}, 2);
  const HostTensor half = NormalTensor(DType::kF16, {2, 3}, 2);
  const HostTensor y(DType::kF32, {2, 3});
  Workspace workspace(FfnPathWorkspaceBytes(path.weights, 2, Rounding::kFused));
  const auto refusal = [&](auto change) {
    FfnPathArgs args = ArgsOf(path, x, nullptr, Rounding::kFused, y, workspace.span());
    change(args);
    const absl::Status status = FfnPath({}, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([&](FfnPathArgs& args) { args.x = wide.view(); }),
              HasSubstr("x: expected 3 columns, got [2, 4] FP32"));
  EXPECT_THAT(refusal([&](FfnPathArgs& args) { args.residual = half.view(); }),
              HasSubstr("residual"));
  EXPECT_THAT(refusal([&](FfnPathArgs& args) { args.residual = wide.view(); }),
              HasSubstr("residual"));
  EXPECT_THAT(refusal([&](FfnPathArgs& args) { args.norm = wide.view(); }), HasSubstr("weight"));
  EXPECT_THAT(refusal([&](FfnPathArgs& args) { args.residual = args.y; }),
              HasSubstr("y: must not overlap residual"));
  EXPECT_THAT(refusal([&](FfnPathArgs& args) {
                args.residual = args.y;
                args.residual.data = static_cast<float*>(args.y.data) + 1;
              }),
              HasSubstr("y: must not overlap residual"));
  EXPECT_THAT(refusal([&](FfnPathArgs& args) { args.params.eps = 0; }), HasSubstr("eps"));
  EXPECT_THAT(refusal([&](FfnPathArgs& args) { args.params.form = RmsNormForm::kNormalisedFirst; }),
              HasSubstr("expected kOnce with kFused"));
  EXPECT_THAT(refusal([&](FfnPathArgs& args) {
                args.workspace = args.workspace.first(args.workspace.size() - 1);
              }),
              HasSubstr("workspace: expected"));
}

}  // namespace
}  // namespace fuseblock::testing
