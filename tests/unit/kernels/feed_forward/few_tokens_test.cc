// Why the feed-forward on Hopper leaves a call to the implementations behind it. Needs no GPU.
#include "kernels/feed_forward/few_tokens.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/feed_forward/feed_forward.h"

namespace fuseblock {
namespace {

class WhyNotFewTokensTest : public ::testing::Test {
 protected:
  void SetUp() override {
    weights_.few = std::make_unique<FewTokens>();
    args_ = *AsFewTokensArgs(weights_.few.get(), View(x_), View(y_), {});
    args_.path.emplace();
    args_.path->residual = View(residual_);
    args_.path->norm = ConstTensorView(norm_, DType::kBF16, {8});
  }

  // Two rows of 8 from that byte on.
  static TensorView View(std::byte* data, size_t from = 0) {
    return TensorView(data + from, DType::kBF16, {2, 8});
  }
  std::string WhyNot(const absl::StatusOr<FewTokensArgs>& args,
                     Rounding rounding = Rounding::kFused) const {
    return WhyNotFewTokens(weights_, rounding, args);
  }

  alignas(16) std::byte x_[48], y_[48], residual_[48], norm_[48];
  FeedForwardWeights weights_;
  FewTokensArgs args_;
};

TEST_F(WhyNotFewTokensTest, TakesAlignedRowsOfPackedWeights) { EXPECT_EQ(WhyNot(args_), ""); }

TEST_F(WhyNotFewTokensTest, WeightsThatAreNotPackedComeFirst) {
  weights_.few.reset();
  weights_.no_few = "is not packed: no room";
  EXPECT_EQ(WhyNot(absl::InvalidArgumentError("x"), Rounding::kHf), "is not packed: no room");
}

TEST_F(WhyNotFewTokensTest, ThenTheRounding) {
  EXPECT_EQ(WhyNot(absl::InvalidArgumentError("x"), Rounding::kHf), "rounds as fused, not as hf");
}

TEST_F(WhyNotFewTokensTest, ThenOperandsThatAreNoRows) {
  EXPECT_EQ(WhyNot(absl::InvalidArgumentError("x: no rows")), "x: no rows");
}

TEST_F(WhyNotFewTokensTest, ThenTheNorm) {
  args_.path->norm.dtype = DType::kF32;
  args_.x.data = x_ + 2;
  EXPECT_EQ(WhyNot(args_), "takes a norm of x's dtype, not FP32");
  args_.path->norm = ConstTensorView();
  EXPECT_EQ(WhyNot(args_), "takes rows on 16-byte boundaries");
}

TEST_F(WhyNotFewTokensTest, ThenEachOperandsBoundaries) {
  for (const int moved : {0, 1, 2}) {
    FewTokensArgs args = args_;
    if (moved == 0) args.x.data = x_ + 2;
    if (moved == 1) args.y.data = y_ + 2;
    if (moved == 2) args.path->residual = View(residual_, 2);
    EXPECT_EQ(WhyNot(args), "takes rows on 16-byte boundaries") << moved;
  }
}

}  // namespace
}  // namespace fuseblock
