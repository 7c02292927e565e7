// What a block refuses, and that the message names the tensor, what was expected and what came.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/kernels/block/block_cases.h"

namespace fuseblock::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string CreateError(const BlockSpec& spec, const BlockWeights& weights) {
  const auto block = Block::Create(spec, weights, Device());
  EXPECT_EQ(block.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(block.status().message());
}

TEST(BlockCreate, RefusesASpecThatCannotBe) {
  const LayerWeights weights = NormalWeights(DType::kF32, 1);
  const BlockWeights views = weights.views();
  const BlockSpec good = SpecOf(BlockKind::kFfnPath, DType::kF32, Rounding::kFused);
  BlockSpec spec = good;
  spec.dtype = DType::kI64;
  EXPECT_THAT(CreateError(spec, views), AllOf(HasSubstr("spec.dtype"), HasSubstr("INT64")));
  spec = good;
  spec.hidden = 0;
  EXPECT_THAT(CreateError(spec, views), HasSubstr("spec.hidden: expected > 0, got 0"));
  spec = good;
  spec.intermediate = -1;
  EXPECT_THAT(CreateError(spec, views), HasSubstr("spec.intermediate: expected > 0, got -1"));
  for (const float eps : {0.0f, -1e-6f, NAN, HUGE_VALF}) {
    spec = good;
    spec.norm.eps = eps;
    EXPECT_THAT(CreateError(spec, views), HasSubstr("spec.norm.eps"));
  }
  spec = SpecOf(BlockKind::kEmbedding, DType::kF32, Rounding::kFused);
  spec.vocabulary = 0;
  EXPECT_THAT(CreateError(spec, views), HasSubstr("spec.vocabulary"));
}

TEST(BlockCreate, NamesTheRoleThatDoesNotFit) {
  const LayerWeights layer = NormalWeights(DType::kF32, 1);
  const BlockSpec path = SpecOf(BlockKind::kFfnPath, DType::kF32, Rounding::kFused);
  BlockWeights weights = layer.views();
  weights.up.reset();
  EXPECT_THAT(CreateError(path, weights), HasSubstr("up: expected [149, 70], got no weight"));
  weights = layer.views();
  weights.down = layer.gate.view();
  EXPECT_THAT(CreateError(path, weights),
              HasSubstr("down: expected [70, 149], got [149, 70] FP32"));
  weights = layer.views();
  weights.norm = layer.table.view();
  EXPECT_THAT(CreateError(path, weights), AllOf(HasSubstr("norm: expected [70]"), HasSubstr("37")));
  const HostTensor integers(DType::kI32, {kIntermediate, kHidden});
  weights = layer.views();
  weights.gate = integers.view();
  EXPECT_THAT(CreateError(path, weights), AllOf(HasSubstr("gate"), HasSubstr("INT32")));
  weights = layer.views();
  weights.down_bias = layer.gate.view();
  EXPECT_THAT(CreateError(path, weights), HasSubstr("down_bias: expected [70]"));
  weights = layer.views();
  weights.gate->stride[1] = 2;
  EXPECT_THAT(CreateError(path, weights), AllOf(HasSubstr("gate"), HasSubstr("stride 2")));
  EXPECT_THAT(
      CreateError(SpecOf(BlockKind::kEmbedding, DType::kF32, Rounding::kFused), BlockWeights()),
      HasSubstr("table: expected [37, 70], got no weight"));
}

TEST(BlockCreate, NeedsOnlyTheWeightsOfItsKind) {
  const LayerWeights layer = NormalWeights(DType::kF32, 1);
  BlockWeights norm, mlp;
  norm.norm = layer.norm.view();
  mlp.gate = layer.gate.view();
  mlp.up = layer.up.view();
  mlp.down = layer.down.view();
  EXPECT_NE(Created(SpecOf(BlockKind::kNormResidual, DType::kF32, Rounding::kHf), norm), nullptr);
  EXPECT_NE(Created(SpecOf(BlockKind::kMlp, DType::kF32, Rounding::kHf), mlp), nullptr);
}

class BlockRun : public ::testing::Test {
 protected:
  BlockRun()
      : block_(Created(SpecOf(BlockKind::kNormResidual, DType::kBF16, Rounding::kFused),
                       layer_.views())),
        path_(Created(SpecOf(BlockKind::kFfnPath, DType::kBF16, Rounding::kFused), layer_.views())),
        workspace_(path_->WorkspaceBytes(3)) {}

  std::string Error(const Block& block, std::vector<ConstTensorView> inputs,
                    std::vector<TensorView> outputs, absl::Span<std::byte> workspace,
                    const ExecutionContext& context = {}) {
    const absl::Status status = block.Run(context, inputs, outputs, workspace);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
  std::string Error(std::vector<ConstTensorView> inputs, std::vector<TensorView> outputs) {
    return Error(*block_, std::move(inputs), std::move(outputs), {});
  }

  LayerWeights layer_ = NormalWeights(DType::kBF16, 1);
  std::unique_ptr<const Block> block_, path_;
  Workspace workspace_;
  HostTensor x_ = NormalTensor(DType::kBF16, {3, kHidden}, 1);
  HostTensor r_ = NormalTensor(DType::kBF16, {3, kHidden}, 2);
  HostTensor y_{DType::kBF16, {3, kHidden}};
  HostTensor h_{DType::kBF16, {3, kHidden}};
};

TEST_F(BlockRun, RefusesShapesAndDTypes) {
  const HostTensor narrow(DType::kBF16, {3, kHidden - 1});
  EXPECT_THAT(Error({narrow.view(), r_.view()}, {y_.view(), h_.view()}),
              HasSubstr("x: expected [3, 70] BF16, got [3, 69] BF16"));
  const HostTensor wide(DType::kF32, {3, kHidden});
  EXPECT_THAT(Error({wide.view(), r_.view()}, {y_.view(), h_.view()}),
              HasSubstr("x: expected [3, 70] BF16, got [3, 70] FP32"));
  const HostTensor more(DType::kBF16, {4, kHidden});
  EXPECT_THAT(Error({x_.view(), more.view()}, {y_.view(), h_.view()}),
              HasSubstr("residual: expected [3, 70] BF16, got [4, 70] BF16"));
  HostTensor less(DType::kBF16, {2, kHidden});
  EXPECT_THAT(Error({x_.view(), r_.view()}, {less.view(), h_.view()}),
              HasSubstr("y: expected [3, 70] BF16, got [2, 70]"));
  EXPECT_THAT(Error({ConstTensorView(), r_.view()}, {y_.view(), h_.view()}),
              HasSubstr("x: expected"));
  const HostTensor apart(DType::kBF16, {3, kHidden}, 2);
  EXPECT_THAT(Error({apart.view(), r_.view()}, {y_.view(), h_.view()}),
              AllOf(HasSubstr("x: expected"), HasSubstr("dense"), HasSubstr("[72, 1]")));
}

TEST_F(BlockRun, RefusesCountsDevicesAndOverlap) {
  EXPECT_THAT(Error({x_.view()}, {y_.view(), h_.view()}),
              HasSubstr("expected 2 inputs and 2 outputs, got 1 and 2"));
  EXPECT_THAT(Error({x_.view(), r_.view()}, {y_.view(), TensorView()}),
              HasSubstr("residual_out: expected with residual and only with it"));
  EXPECT_THAT(Error({x_.view(), ConstTensorView()}, {y_.view(), h_.view()}),
              HasSubstr("residual_out: expected with residual and only with it"));
  ConstTensorView elsewhere = x_.view();
  elsewhere.device = {DeviceType::kCuda, 1};
  EXPECT_THAT(Error({elsewhere, r_.view()}, {y_.view(), h_.view()}),
              AllOf(HasSubstr("x: expected on cpu"), HasSubstr("cuda:1")));
  EXPECT_THAT(Error(*block_, {x_.view(), r_.view()}, {y_.view(), h_.view()}, {},
                    ExecutionContext{{DeviceType::kCuda, 0}, nullptr, {}}),
              AllOf(HasSubstr("cpu"), HasSubstr("cuda:0")));
  EXPECT_THAT(Error({x_.view(), r_.view()}, {x_.view(), h_.view()}),
              HasSubstr("y: must not overlap x"));
  TensorView shifted(r_.row(1), DType::kBF16, {3, kHidden});
  EXPECT_THAT(Error({x_.view(), r_.view()}, {y_.view(), shifted}),
              AllOf(HasSubstr("residual_out"), HasSubstr("residual")));
}

TEST_F(BlockRun, RefusesAWorkspaceThatDoesNotDo) {
  const size_t needed = path_->WorkspaceBytes(3);
  EXPECT_THAT(
      Error(*path_, {x_.view(), r_.view()}, {y_.view()}, workspace_.span().first(needed - 1)),
      HasSubstr("workspace: expected "));
  Workspace larger(needed + 256);
  EXPECT_THAT(Error(*path_, {x_.view(), r_.view()}, {y_.view()}, larger.span().subspan(128)),
              HasSubstr("256-byte"));
}

TEST_F(BlockRun, NamesTheFirstBadIdAndWritesNothing) {
  const auto block =
      Created(SpecOf(BlockKind::kEmbedding, DType::kBF16, Rounding::kFused), layer_.views());
  for (const int32_t bad :
       {-1, static_cast<int32_t>(kVocabulary), std::numeric_limits<int32_t>::max()}) {
    const HostTensor ids = Ids({1, bad, -5});
    HostTensor y(DType::kBF16, {3, kHidden});
    const HostTensor before = y;
    const ConstTensorView input = ids.view();
    const TensorView output = y.view();
    const absl::Status status = block->Run({}, {&input, 1}, {&output, 1}, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("ids[1]"), HasSubstr("0 <= id < 37"),
                                                     HasSubstr(std::to_string(bad))));
    EXPECT_TRUE(SameRows(y, 0, before, 0, 3));
  }
}

}  // namespace
}  // namespace fuseblock::testing
