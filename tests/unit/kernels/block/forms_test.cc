// Blocks of every form of the feed-forward: they compute what the kernels compute from the same
// weights, share weights with blocks of their own form only, and ask for what the form needs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/ffn_path/ffn_path.h"
#include "tests/unit/kernels/block/block_cases.h"

namespace fuseblock::testing {
namespace {

using ::testing::HasSubstr;

struct Layer {
  explicit Layer(DType dtype)
      : weights(NormalWeights(dtype, 1)),
        up_bias(NormalTensor(dtype, {kIntermediate}, 7)),
        down_bias(NormalTensor(dtype, {kHidden}, 8)) {}

  // As a checkpoint of that form has them.
  BlockWeights views(bool gated) const {
    BlockWeights views = weights.views();
    if (!gated) {
      views.gate.reset();
      views.up_bias = up_bias.view();
      views.down_bias = down_bias.view();
    }
    return views;
  }

  LayerWeights weights;
  HostTensor up_bias, down_bias;
};

BlockSpec SpecOf(BlockKind kind, const FeedForwardFormEntry& form, DType dtype, Rounding rounding) {
  BlockSpec spec = testing::SpecOf(kind, dtype, rounding);
  spec.activation = form.activation;
  spec.gated = form.gated;
  return spec;
}

FeedForwardWeights Prepared(const BlockWeights& views, const FeedForwardFormEntry& form) {
  FeedForwardWeights weights;
  weights.form = form.form;
  if (form.gated) weights.gate = *LinearWeight::Prepare(Device(), *views.gate, std::nullopt);
  weights.up = *LinearWeight::Prepare(Device(), *views.up, views.up_bias);
  weights.down = *LinearWeight::Prepare(Device(), *views.down, views.down_bias);
  return weights;
}

TEST(BlockForms, ComputeWhatTheirKernelsCompute) {
  constexpr int64_t kRows = 5;
  for (const FeedForwardFormEntry& form : kFeedForwardForms) {
    for (const DType dtype : kFloatDTypes) {
      const Layer layer(dtype);
      const FeedForwardWeights weights = Prepared(layer.views(form.gated), form);
      for (const Rounding rounding : kRoundings) {
        SCOPED_TRACE(form.name);
        const BlockSpec mlp = SpecOf(BlockKind::kMlp, form, dtype, rounding);
        const std::vector<HostTensor> in = InputsOf(mlp, kRows, 5);
        HostTensor want(dtype, {kRows, kHidden});
        Workspace space(FeedForwardWorkspaceBytes(weights, kRows, rounding));
        ASSERT_TRUE(
            FeedForward({}, in[0].view(), weights, rounding, want.view(), space.span()).ok());
        const auto block = Created(mlp, layer.views(form.gated));
        EXPECT_TRUE(SameRows(RunBlock(*block, in, kRows)[0], 0, want, 0, kRows));

        const BlockSpec path = SpecOf(BlockKind::kFfnPath, form, dtype, rounding);
        const std::vector<HostTensor> path_in = InputsOf(path, kRows, 5);
        FfnPathArgs args;
        args.x = path_in[0].view();
        args.residual = path_in[1].view();
        args.norm = layer.weights.norm.view();
        args.params = path.norm;
        if (rounding == Rounding::kFused) args.params.form = RmsNormForm::kOnce;
        args.weights = &weights;
        args.rounding = rounding;
        args.y = want.view();
        Workspace path_space(FfnPathWorkspaceBytes(weights, kRows, rounding));
        args.workspace = path_space.span();
        ASSERT_TRUE(FfnPath({}, args).ok());
        const auto path_block = Created(path, layer.views(form.gated));
        EXPECT_TRUE(SameRows(RunBlock(*path_block, path_in, kRows)[0], 0, want, 0, kRows));
      }
    }
  }
}

TEST(BlockForms, ShareWeightsWithTheirOwnFormOnly) {
  const Layer layer(DType::kBF16);
  BlockWeightCache cache;
  const auto created = [&](BlockKind kind, const FeedForwardFormEntry& form) {
    const BlockSpec spec = SpecOf(kind, form, DType::kBF16, Rounding::kFused);
    BlockWeights views = layer.weights.views();  // the same memory for all
    auto block = Block::Create(spec, views, Device(), {}, &cache);
    EXPECT_TRUE(block.ok()) << block.status();
    return std::move(*block);
  };
  std::vector<std::unique_ptr<const Block>> blocks;
  for (const FeedForwardFormEntry& form : kFeedForwardForms) {
    blocks.push_back(created(BlockKind::kMlp, form));
    EXPECT_GT(blocks.back()->weight_bytes(), 2u * kHidden * kIntermediate) << form.name;
    blocks.push_back(created(BlockKind::kFfnPath, form));
    EXPECT_LT(blocks.back()->weight_bytes(), 1000u) << form.name;  // the norm alone
  }
  EXPECT_GT(blocks[0]->weight_bytes(), blocks[6]->weight_bytes());  // no gate
}

TEST(BlockForms, AskForWhatTheyNeed) {
  const Layer layer(DType::kF32);
  const auto error = [](const BlockSpec& spec, const BlockWeights& weights) {
    const auto block = Block::Create(spec, weights, Device());
    EXPECT_EQ(block.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(block.status().message());
  };
  BlockSpec spec = testing::SpecOf(BlockKind::kMlp, DType::kF32, Rounding::kFused);
  spec.gated = false;
  EXPECT_THAT(
      error(spec, layer.views(false)),
      HasSubstr("spec.activation: expected gelu_tanh or gelu_erf without a gate, got silu"));
  spec.activation = Activation::kGeluTanh;
  spec.gated = true;
  EXPECT_THAT(error(spec, layer.views(false)),
              HasSubstr("gate: expected [149, 70], got no weight"));
  spec.gated = false;
  BlockWeights wrong = layer.views(false);
  wrong.down_bias = layer.up_bias.view();
  EXPECT_THAT(error(spec, wrong), HasSubstr("down_bias: expected [70], got [149]"));
}

}  // namespace
}  // namespace fuseblock::testing
