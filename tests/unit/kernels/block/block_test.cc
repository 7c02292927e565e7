// Blocks: what each kind computes, where each mode rounds, a row's bits, weights of any dtype, the
// workspace's bounds.
#include "kernels/block/block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/mlp_swiglu/mlp_swiglu.h"
#include "kernels/rms_norm/rms_norm.h"
#include "server/engine/cpu_team.h"
#include "tests/unit/kernels/block/block_cases.h"

namespace fuseblock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BlockTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, BlockTest, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

std::vector<std::string> NamesOf(const std::vector<BlockTensor>& tensors) {
  std::vector<std::string> names;
  for (const BlockTensor& tensor : tensors) {
    names.push_back(std::string(tensor.name) + (tensor.optional ? "?" : ""));
  }
  return names;
}

TEST(BlockKinds, SayWhatTheyTakeAndGive) {
  const auto spec = [](BlockKind kind) { return SpecOf(kind, DType::kBF16, Rounding::kFused); };
  const auto inputs = [&](BlockKind kind) { return NamesOf(Block::Inputs(spec(kind))); };
  const auto outputs = [&](BlockKind kind) { return NamesOf(Block::Outputs(spec(kind))); };
  EXPECT_THAT(inputs(BlockKind::kNormResidual), ElementsAre("x", "residual?"));
  EXPECT_THAT(outputs(BlockKind::kNormResidual), ElementsAre("y", "residual_out?"));
  EXPECT_THAT(inputs(BlockKind::kMlp), ElementsAre("x"));
  EXPECT_THAT(inputs(BlockKind::kFfnPath), ElementsAre("x", "residual?"));
  EXPECT_THAT(inputs(BlockKind::kEmbedding), ElementsAre("ids"));
  for (const BlockKind kind : {BlockKind::kMlp, BlockKind::kFfnPath, BlockKind::kEmbedding}) {
    EXPECT_THAT(outputs(kind), ElementsAre("y"));
  }
  const BlockTensor x = Block::Inputs(spec(BlockKind::kMlp))[0];
  EXPECT_EQ(x.columns, kHidden);
  EXPECT_THAT(x.dtypes, ElementsAre(DType::kBF16));
  const BlockTensor ids = Block::Inputs(spec(BlockKind::kEmbedding))[0];
  EXPECT_EQ(ids.columns, 0);
  EXPECT_THAT(ids.dtypes, ElementsAre(DType::kI32, DType::kI64));
}

TEST(BlockKinds, PrintTheirFormula) {
  const auto formula = [](BlockKind kind) {
    return Block::Formula(SpecOf(kind, DType::kBF16, Rounding::kFused));
  };
  EXPECT_EQ(formula(BlockKind::kNormResidual),
            "h = x (+ residual); y = h / sqrt(mean(h^2) + 1e-05) * w; residual_out = h");
  EXPECT_EQ(formula(BlockKind::kMlp), "y = down(silu(gate(x)) * up(x))");
  EXPECT_EQ(formula(BlockKind::kFfnPath),
            "h = x (+ residual); n = h / sqrt(mean(h^2) + 1e-05) * w; "
            "y = h + down(silu(gate(n)) * up(n))");
  EXPECT_EQ(formula(BlockKind::kEmbedding), "y = table[ids]");
  BlockSpec spec = SpecOf(BlockKind::kEmbedding, DType::kBF16, Rounding::kFused);
  spec.embedding_scale = 24;
  EXPECT_EQ(Block::Formula(spec), "y = table[ids] * 24");
  spec = SpecOf(BlockKind::kNormResidual, DType::kBF16, Rounding::kFused);
  spec.norm.weight_offset = 1;
  EXPECT_THAT(Block::Formula(spec), HasSubstr("* (w + 1)"));
  spec = SpecOf(BlockKind::kMlp, DType::kBF16, Rounding::kFused);
  spec.activation = Activation::kGeluTanh;
  EXPECT_EQ(Block::Formula(spec), "y = down(gelu_tanh(gate(x)) * up(x))");
  spec.activation = Activation::kGeluErf;
  spec.gated = false;
  EXPECT_EQ(Block::Formula(spec), "y = down(gelu_erf(up(x)))");
  EXPECT_EQ(Name(BlockKind::kFfnPath), "ffn_path");
}

// h = [3, 4], mean of squares 12.5, w = [2, 1], gate = up = [[1, 0]], down = [[2], [1]].
TEST_P(BlockTest, WorkedExample) {
  const DType dtype = GetParam();
  HostTensor norm(dtype, {2}), gate(dtype, {1, 2}), down(dtype, {2, 1});
  norm.set(0, 0, 2);
  norm.set(0, 1, 1);
  gate.set(0, 0, 1);
  gate.set(0, 1, 0);
  down.set(0, 0, 2);
  down.set(1, 0, 1);
  BlockWeights weights;
  weights.norm = norm.view();
  weights.gate = gate.view();
  weights.up = gate.view();
  weights.down = down.view();
  BlockSpec spec = SpecOf(BlockKind::kFfnPath, dtype, Rounding::kFused);
  spec.hidden = 2;
  spec.intermediate = 1;
  spec.norm.eps = 1e-12f;
  const auto block = Created(spec, weights);
  std::vector<HostTensor> inputs = {HostTensor(dtype, {1, 2}), HostTensor(dtype, {1, 2})};
  inputs[0].set(0, 0, 1);
  inputs[0].set(0, 1, 2);
  inputs[1].fill(2);
  const HostTensor y = RunBlock(*block, inputs, 1)[0];
  const double n = 2 * 3 / std::sqrt(12.5);  // 1.697
  const double inner = n / (1 + std::exp(-n)) * n;
  const double tolerance = 4 * Traits(dtype).epsilon * (3 + 2 * inner);
  EXPECT_NEAR(y.at(0, 0), 3 + 2 * inner, tolerance);
  EXPECT_NEAR(y.at(0, 1), 4 + inner, tolerance);
}

// The blocks' bits are those of the public kernels, with h in FP32 in `fused` and stored in `hf`.
TEST_P(BlockTest, AreTheCompositionOfTheirKernels) {
  const DType dtype = GetParam();
  const LayerWeights weights = NormalWeights(dtype, 1);
  FeedForwardWeights mlp;
  mlp.gate = *LinearWeight::Prepare(Device(), weights.gate.view(), std::nullopt);
  mlp.up = *LinearWeight::Prepare(Device(), weights.up.view(), std::nullopt);
  mlp.down = *LinearWeight::Prepare(Device(), weights.down.view(), std::nullopt);
  constexpr int64_t kRows = 9;
  const std::vector<int64_t> shape = {kRows, kHidden};
  for (const Rounding rounding : kRoundings) {
    const bool fused = rounding == Rounding::kFused;
    const DType stream = fused ? DType::kF32 : dtype;
    const BlockSpec spec = SpecOf(BlockKind::kFfnPath, dtype, rounding);
    // `fused` rounds a norm once, whatever the family's form.
    const RmsNormParams params{1e-5f, 0,
                               fused ? RmsNormForm::kOnce : RmsNormForm::kNormalisedFirst};
    const std::vector<HostTensor> in = InputsOf(spec, kRows, 5);
    const auto norm_block =
        Created(SpecOf(BlockKind::kNormResidual, dtype, rounding), weights.views());
    const auto mlp_block = Created(SpecOf(BlockKind::kMlp, dtype, rounding), weights.views());
    const auto path_block = Created(spec, weights.views());
    for (const bool residual : {false, true}) {
      HostTensor n(dtype, shape), h(stream, shape), out(dtype, shape), down(stream, shape);
      HostTensor y(dtype, shape);
      ConstTensorView sum = in[0].view();
      if (residual) {
        ASSERT_TRUE(AddRmsNorm({}, in[0].view(), in[1].view(), weights.norm.view(), params,
                               rounding, n.view(), h.view())
                        .ok());
        ASSERT_TRUE(AddResidual({}, in[0].view(), in[1].view(), out.view()).ok());
        sum = h.view();
      } else {
        ASSERT_TRUE(RmsNorm({}, in[0].view(), weights.norm.view(), params, n.view()).ok());
      }
      Workspace space(FeedForwardWorkspaceBytes(mlp, kRows, rounding));
      ASSERT_TRUE(MlpSwiGlu({}, n.view(), mlp, rounding, down.view(), space.span()).ok());
      ASSERT_TRUE(AddResidual({}, sum, down.view(), y.view()).ok());

      const std::vector<HostTensor> normed = RunBlock(*norm_block, in, kRows, residual);
      EXPECT_TRUE(SameRows(normed[0], 0, n, 0, kRows));
      if (residual) {
        EXPECT_TRUE(SameRows(normed[1], 0, out, 0, kRows));
      }
      const std::vector<HostTensor> path = RunBlock(*path_block, in, kRows, residual);
      EXPECT_TRUE(SameRows(path[0], 0, y, 0, kRows)) << (fused ? "fused" : "hf") << residual;
    }
    HostTensor y(dtype, shape);
    Workspace space(FeedForwardWorkspaceBytes(mlp, kRows, rounding));
    ASSERT_TRUE(MlpSwiGlu({}, in[0].view(), mlp, rounding, y.view(), space.span()).ok());
    EXPECT_TRUE(SameRows(RunBlock(*mlp_block, in, kRows)[0], 0, y, 0, kRows));
  }
}

// 2048 + 1 is no FP16: `hf` stores 2048 and norms that, `fused` norms 2049.
TEST(BlockRounding, TheSumIsStoredInHfOnly) {
  HostTensor norm(DType::kF16, {2});
  norm.fill(1);
  BlockWeights weights;
  weights.norm = norm.view();
  std::vector<HostTensor> inputs = {HostTensor(DType::kF16, {1, 2}),
                                    HostTensor(DType::kF16, {1, 2})};
  inputs[0].set(0, 0, 2048);
  inputs[0].set(0, 1, 1);
  inputs[1].set(0, 0, 1);
  inputs[1].set(0, 1, 0);
  double small[2];
  for (const Rounding rounding : kRoundings) {
    BlockSpec spec = SpecOf(BlockKind::kNormResidual, DType::kF16, rounding);
    spec.hidden = 2;
    spec.norm.form = RmsNormForm::kOnce;
    const std::vector<HostTensor> out = RunBlock(*Created(spec, weights), inputs, 1);
    EXPECT_EQ(out[1].at(0, 0), 2048);  // residual_out is h rounded in both
    small[rounding == Rounding::kHf] = out[0].at(0, 1);
  }
  // 1 / sqrt((h^2 + 1) / 2): 6.902e-4 of 2049, 6.905e-4 of 2048, 4.8e-7 apart from one FP16 to the
  // next.
  EXPECT_NEAR(small[0], std::sqrt(2.0) / 2049, 0x1p-22);
  EXPECT_NEAR(small[1], std::sqrt(2.0) / 2048, 0x1p-22);
  EXPECT_LT(small[0], small[1]);
}

TEST_P(BlockTest, Embedding) {
  const LayerWeights weights = NormalWeights(GetParam(), 1);
  BlockSpec spec = SpecOf(BlockKind::kEmbedding, GetParam(), Rounding::kFused);
  const HostTensor y = RunBlock(*Created(spec, weights.views()), {Ids({36, 0, 5, 5})}, 4)[0];
  EXPECT_TRUE(SameRows(y, 0, weights.table, 36, 1));
  EXPECT_TRUE(SameRows(y, 1, weights.table, 0, 1));
  EXPECT_TRUE(SameRows(y, 2, weights.table, 5, 1));
  EXPECT_TRUE(SameRows(y, 3, weights.table, 5, 1));
  spec.embedding_scale = 2;
  const HostTensor scaled = RunBlock(*Created(spec, weights.views()), {Ids({7})}, 1)[0];
  for (int64_t c = 0; c < kHidden; ++c) EXPECT_EQ(scaled.at(0, c), 2 * weights.table.at(7, c));
}

// A row alone, in batches of every size, at both ends and in the middle, on one and two threads,
// from misaligned memory.
TEST_P(BlockTest, ARowsBitsAreItsOwn) {
  CpuTeam team(2);
  constexpr int64_t kRows = 50;
  const LayerWeights weights = NormalWeights(GetParam(), 1);
  for (const BlockKind kind : kKinds) {
    for (const Rounding rounding : kRoundings) {
      const BlockSpec spec = SpecOf(kind, GetParam(), rounding);
      const auto block = Created(spec, weights.views());
      const std::vector<HostTensor> inputs = InputsOf(spec, kRows, 9);
      std::vector<std::vector<HostTensor>> alone;
      for (int64_t m = 0; m < kRows; ++m) {
        alone.push_back(RunBlock(*block, Part(inputs, m, 1), 1));
      }
      for (int64_t count = 1; count <= kRows; ++count) {
        for (const int64_t first : {int64_t{0}, (kRows - count) / 2, kRows - count}) {
          const size_t offset = static_cast<size_t>(4 * (count % 3));
          const std::vector<HostTensor> out =
              RunBlock(*block, Part(inputs, first, count, offset), count, true,
                       count % 2 == 0 ? team.parallel_for() : ParallelFor(), offset);
          for (int64_t m = 0; m < count; ++m) {
            for (size_t o = 0; o < out.size(); ++o) {
              ASSERT_TRUE(SameRows(out[o], m, alone[static_cast<size_t>(first + m)][o], 0, 1))
                  << std::string(Name(kind)) << ", row " << m << " of " << count;
            }
          }
        }
      }
    }
  }
}

TEST_P(BlockTest, NoRowsAreOk) {
  const LayerWeights weights = NormalWeights(GetParam(), 1);
  for (const BlockKind kind : kKinds) {
    const BlockSpec spec = SpecOf(kind, GetParam(), Rounding::kFused);
    const auto block = Created(spec, weights.views());
    EXPECT_EQ(block->WorkspaceBytes(0), 0u);
    RunBlock(*block, Part(InputsOf(spec, 1, 2), 0, 0), 0);
  }
}

// A checkpoint's dtype is converted once, to nearest even; its memory is not needed afterwards.
TEST_P(BlockTest, WeightsOfAnyDTypeAreConverted) {
  for (const DType stored : kFloatDTypes) {
    LayerWeights weights = NormalWeights(stored, 1);
    LayerWeights same = NormalWeights(GetParam(), 1);
    const std::pair<HostTensor*, HostTensor*> pairs[] = {{&weights.norm, &same.norm},
                                                         {&weights.gate, &same.gate},
                                                         {&weights.up, &same.up},
                                                         {&weights.down, &same.down},
                                                         {&weights.table, &same.table}};
    for (const auto& [from, to] : pairs) {
      for (int64_t r = 0; r < from->rows(); ++r) {
        for (int64_t c = 0; c < from->cols(); ++c) {
          to->set(r, c, static_cast<float>(from->at(r, c)));
        }
      }
    }
    for (const BlockKind kind : kKinds) {
      const BlockSpec spec = SpecOf(kind, GetParam(), Rounding::kFused);
      const std::vector<HostTensor> inputs = InputsOf(spec, 5, 3);
      const auto want = RunBlock(*Created(spec, same.views()), inputs, 5);
      const auto block = Created(spec, weights.views());
      for (const auto& [from, to] : pairs) from->fill(NAN);
      const auto got = RunBlock(*block, inputs, 5);
      weights = NormalWeights(stored, 1);
      for (size_t o = 0; o < got.size(); ++o) {
        EXPECT_TRUE(SameRows(got[o], 0, want[o], 0, 5))
            << std::string(Name(kind)) << " from " << std::string(Name(stored));
      }
    }
  }
}

TEST_P(BlockTest, BiasesAreAdded) {
  const DType dtype = GetParam();
  const LayerWeights weights = NormalWeights(dtype, 1);
  HostTensor zeros(dtype, {kIntermediate}), ones(dtype, {kIntermediate}), bias(dtype, {kHidden});
  zeros.fill(0);
  ones.fill(1);
  FillNormal(bias, 4);
  HostTensor nothing(dtype, {kHidden, kIntermediate});
  nothing.fill(0);
  BlockWeights views = weights.views();
  views.gate_bias = zeros.view();
  views.up_bias = ones.view();
  views.down_bias = bias.view();
  const BlockSpec spec = SpecOf(BlockKind::kMlp, dtype, Rounding::kFused);
  const std::vector<HostTensor> inputs = InputsOf(spec, 3, 3);
  const HostTensor with = RunBlock(*Created(spec, views), inputs, 3)[0];
  EXPECT_FALSE(SameRows(with, 0, RunBlock(*Created(spec, weights.views()), inputs, 3)[0], 0, 3));
  views.down = nothing.view();  // leaves the last bias alone
  const HostTensor y = RunBlock(*Created(spec, views), inputs, 3)[0];
  for (int64_t m = 0; m < 3; ++m) {
    for (int64_t n = 0; n < kHidden; ++n) EXPECT_EQ(y.at(m, n), bias.at(0, n));
  }
}

TEST(BlockWeightCacheTest, HoldsALayersFeedForwardOnce) {
  const LayerWeights weights = NormalWeights(DType::kBF16, 1);
  const BlockWeights views = weights.views();
  const BlockSpec mlp = SpecOf(BlockKind::kMlp, DType::kBF16, Rounding::kFused);
  const BlockSpec path = SpecOf(BlockKind::kFfnPath, DType::kBF16, Rounding::kFused);
  const size_t alone = Created(path, views)->weight_bytes();
  std::unique_ptr<const Block> shared;
  {
    BlockWeightCache cache;
    auto first = Block::Create(mlp, views, Device(), {}, &cache);
    auto second = Block::Create(path, views, Device(), {}, &cache);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ((*first)->weight_bytes() + (*second)->weight_bytes(), alone);
    // Another dtype is another weight.
    auto wide = Block::Create(SpecOf(BlockKind::kMlp, DType::kF32, Rounding::kFused), views,
                              Device(), {}, &cache);
    EXPECT_GT((*wide)->weight_bytes(), (*first)->weight_bytes());
    shared = *std::move(second);  // outlives the cache and the block that made the weights
  }
  const std::vector<HostTensor> inputs = InputsOf(path, 4, 3);
  EXPECT_TRUE(SameRows(RunBlock(*shared, inputs, 4)[0], 0,
                       RunBlock(*Created(path, views), inputs, 4)[0], 0, 4));
}

TEST_P(BlockTest, ManyLanesRunOneBlockAtATime) {
  const LayerWeights weights = NormalWeights(GetParam(), 1);
  const BlockSpec spec = SpecOf(BlockKind::kFfnPath, GetParam(), Rounding::kFused);
  const auto block = Created(spec, weights.views());
  const std::vector<HostTensor> inputs = InputsOf(spec, 40, 9);
  const HostTensor want = RunBlock(*block, inputs, 40)[0];
  std::vector<std::thread> lanes;
  std::vector<int> wrong(4);
  for (int& lane_wrong : wrong) {
    lanes.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        lane_wrong += !SameRows(RunBlock(*block, inputs, 40)[0], 0, want, 0, 40);
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(BlockWorkspace, GrowsWithTheRows) {
  const LayerWeights weights = NormalWeights(DType::kBF16, 1);
  for (const BlockKind kind : kKinds) {
    for (const Rounding rounding : kRoundings) {
      const auto block = Created(SpecOf(kind, DType::kBF16, rounding), weights.views());
      for (int64_t rows = 1; rows < 300; ++rows) {
        EXPECT_LE(block->WorkspaceBytes(rows - 1), block->WorkspaceBytes(rows));
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
