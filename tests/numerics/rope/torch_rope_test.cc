// Rung 6 for the rotary position embedding: what transformers computes (torch_rope.py).
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/model/safetensors.h"
#include "tests/numerics/rope/rope_runs.h"

namespace fuseblock::testing {
namespace {

constexpr char kFile[] = "tests/numerics/rope/torch_rope.safetensors";

class TorchRope : public ::testing::Test {
 protected:
  void SetUp() override {
    auto file = SafetensorsFile::Open(kFile);
    ASSERT_TRUE(file.ok()) << file.status();
    file_.emplace(*std::move(file));
  }
  // A vector is one row.
  Tensor Get(const std::string& name) const {
    const absl::StatusOr<ConstTensorView> view = file_->Find(name);
    EXPECT_TRUE(view.ok()) << view.status();
    Tensor tensor(view->dtype, view->rank == 1 ? 1 : view->shape[0], view->cols());
    std::memcpy(tensor.memory(), view->data, tensor.memory_bytes());
    return tensor;
  }

 private:
  std::optional<SafetensorsFile> file_;
};

struct Scaling {
  const char* name;
  int64_t rotary_dims;
  double theta;
  RopeScaling scaling;
};

std::vector<Scaling> Scalings() {
  RopeScaling linear;
  linear.kind = RopeScalingKind::kLinear;
  linear.factor = 4;
  RopeScaling llama3;
  llama3.kind = RopeScalingKind::kLlama3;
  llama3.factor = 8;
  llama3.original_max_position = 8192;
  RopeScaling yarn;
  yarn.kind = RopeScalingKind::kYarn;
  yarn.factor = 16;
  yarn.original_max_position = 4096;
  RopeScaling untruncated = yarn;
  untruncated.factor = 32;
  untruncated.truncate = false;
  RopeScaling given = yarn;
  given.factor = 4;
  given.attention_factor = 1.5;
  given.beta_fast = 24;
  given.beta_slow = 2;
  given.original_max_position = 32768;
  return {{"linear", 64, 10000, linear},
          {"llama3", 128, 500000, llama3},
          {"yarn", 128, 10000, yarn},
          {"yarn_untruncated", 64, 150000, untruncated},
          {"yarn_given_attention_factor", 96, 1000000, given}};
}

// transformers works in FP32: theta^x with x rounded is off by ln(theta) x 2^-24 at most and the
// power itself by 2, and the interpolation, whose weights are rounded differences, mixes f and
// f / factor: an error of 4 units in a weight is one of 4 * factor in the smaller term.
TEST_F(TorchRope, FrequenciesAreTransformers) {
  for (const Scaling& one : Scalings()) {
    const RopeParams params{one.rotary_dims, 1, one.theta, one.scaling};
    const auto table = RopeTable::Make({}, params);
    ASSERT_TRUE(table.ok()) << table.status();
    const Tensor want = Get(absl::StrCat(one.name, ".inverse_frequencies"));
    ASSERT_EQ(want.columns(), one.rotary_dims / 2);
    const double units = std::log(one.theta) + 6 + 8 * one.scaling.factor;
    for (int64_t i = 0; i < want.columns(); ++i) {
      const double got = table->inverse_frequencies()[static_cast<size_t>(i)];
      EXPECT_NEAR(got, want.At(0, i), units * kUnitRoundoffFp32 * got) << one.name << " pair " << i;
    }
    const double factor = Get(absl::StrCat(one.name, ".attention_factor")).At(0, 0);
    EXPECT_NEAR(table->attention_factor(), factor, 2 * kUnitRoundoffFp32 * factor) << one.name;
  }
}

constexpr int64_t kHeadDim = 20, kRotaryDims = 16;

// The largest error against `exact`, in the dtype's epsilon times the pair's |a| + |b|.
double WorstError(const Tensor& x, const Tensor& exact, const Tensor& got, RopePairs pairs) {
  double worst = 0;
  for (int64_t row = 0; row < got.rows(); ++row) {
    for (int64_t column = 0; column < got.columns(); ++column) {
      const int64_t within = column % kHeadDim;
      double magnitude = std::abs(x.At(row, column));
      if (within < kRotaryDims) {
        const int64_t half = kRotaryDims / 2;
        const int64_t other = pairs == RopePairs::kHalves ? (within < half ? half : -half)
                                                          : (within % 2 == 0 ? 1 : -1);
        magnitude += std::abs(x.At(row, column + other));
      }
      const double error = std::abs(got.At(row, column) - exact.At(row, column));
      worst = std::max(worst, error / (magnitude * Traits(got.dtype()).epsilon));
    }
  }
  return worst;
}

// Positions 0, 1, 17, 4095, 131071 and 1,000,000; q of three heads and k of one. Against FP64, and
// no further from it than transformers in the dtype, whose angles are FP32's and whose cos and sin
// are the dtype's.
TEST_F(TorchRope, ValuesAreThoseOfFp64) {
  Tensor positions = PositionsOf({0, 1, 17, 4095, 131071, 1000000});
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    for (const DType dtype : kFloatDTypes) {
      const std::string prefix =
          absl::StrCat(pairs == RopePairs::kHalves ? "halves." : "neighbours.",
                       std::string(Traits(dtype).label), ".");
      Tensor x = Get(prefix + "x");
      const Tensor exact = Get(prefix + "exact"), eager = Get(prefix + "eager");
      const double theirs = WorstError(x, exact, eager, pairs);
      for (const Variant& variant : RopeVariants()) {
        const RopeSetup setup{{kRotaryDims, 1000001, 10000, {}}, pairs};
        const Tensor got = Turned(variant, setup, positions, {3, 1, kHeadDim}, x);
        const double ours = WorstError(x, exact, got, pairs);
        // Half a last place of the result; in FP32 four units of 2^-24, two last places, and the
        // stored value's own rounding.
        EXPECT_LE(ours, dtype == DType::kF32 ? 0.5 + 2 + 0.5 : 0.51) << prefix << variant.label;
        EXPECT_LE(ours, theirs) << prefix << variant.label;
        RecordProperty(absl::StrCat("rope ", prefix, variant.label),
                       absl::StrCat(ours, " epsilon, transformers ", theirs));
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
