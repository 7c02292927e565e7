// The feed-forward of few tokens on Hopper: every stage within its bound of FP64, the same bits for
// a row at any number of tokens, in any position, on both sides of the change to the composed
// products, replay after replay and beside another stream.
#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "tests/gpu/few_tokens_support.h"
#include "tests/support/exact_mlp.h"

namespace fuseblock::testing {
namespace {

constexpr double kFp32Unit = 0x1p-24;

// Smallest first: what is wrong shows soonest there.
constexpr Size kSizes[] = {{64, 128},     {576, 1536},   {2048, 8192},  {2560, 6912},
                           {3584, 18944}, {4096, 14336}, {5120, 13824}, {8192, 28672}};
// For the forms that share the rest: a part that is not full, one and two products for a warpgroup
// and segments of K, a model's size.
constexpr Size kFewSizes[] = {{64, 128}, {256, 28672}, {576, 1536}, {2048, 8192}};

class GpuFewTokens : public HopperFfn {
 protected:
  absl::Span<const Size> sizes() const {
    return all_sizes() ? absl::Span<const Size>(kSizes) : absl::Span<const Size>(kFewSizes);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, GpuFewTokens, EveryForm(), FormName);

// Some columns of a tensor: both ends, and steps that meet every place in tiles and parts.
std::vector<int64_t> SomeColumns(int64_t columns) {
  std::vector<int64_t> some;
  const int64_t step = std::max<int64_t>(1, columns / 40) | 1;
  for (int64_t column = 0; column < columns; column += step) some.push_back(column);
  some.push_back(columns - 1);
  return some;
}

// The first few cells that are outside their bound, for people; empty: none.
class Misses {
 public:
  void Check(int64_t row, int64_t column, double got, double want, double bound) {
    if (std::fabs(got - want) <= bound) return;
    if (++count_ <= 6) {
      absl::StrAppend(&text_, "\n  [", row, ", ", column, "]: got ", got, ", exact ", want,
                      ", bound ", bound);
    }
  }
  std::string Text() const {
    return count_ == 0 ? "" : absl::StrCat(count_, " cells are off:", text_);
  }

 private:
  int64_t count_ = 0;
  std::string text_;
};

// n of every row from x and the residual, each in FP64.
std::string CheckNorm(const Ffn& ffn, const Tensor& x, const Tensor& residual, const Tensor& n) {
  const double u = Traits(ffn.dtype()).epsilon / 2;
  Misses misses;
  for (int64_t row = 0; row < n.rows(); ++row) {
    double squares = 0;
    for (int64_t k = 0; k < x.columns(); ++k) {
      squares += std::pow(x.At(row, k) + residual.At(row, k), 2);
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.columns()) + kFfnEps);
    for (int64_t k = 0; k < x.columns(); ++k) {
      const double want = (x.At(row, k) + residual.At(row, k)) * scale * ffn.norm.At(0, k);
      misses.Check(row, k, n.At(row, k), want, std::fabs(want) * (u + 60 * kFp32Unit) + 0x1p-25);
    }
  }
  return misses.Text();
}

// A row of a weight times one of n, in FP64, and what FP32 sums may be off by.
struct Sum {
  double value, error;
};
Sum Product(const Tensor& weight, int64_t column, const Tensor& n, int64_t row, double bias) {
  double sum = bias, norm = std::fabs(bias);
  for (int64_t k = 0; k < n.columns(); ++k) {
    const double term = weight.At(column, k) * n.At(row, k);
    sum += term;
    norm += std::fabs(term);
  }
  return {sum, (static_cast<double>(n.columns()) + (bias == 0 ? 2 : 3)) * kFp32Unit * norm};
}

// Some columns of the product from the n that the GPU computed. silu is within 20 units, gelu
// within 2^-16 (gelu.cuh).
std::string CheckGateUp(const Ffn& ffn, const Tensor& n, const Tensor& product) {
  const double u = Traits(ffn.dtype()).epsilon / 2;
  const Activation activation = ffn.tested.activation();
  const double units = activation == Activation::kSilu ? 20 : 261;
  Misses misses;
  for (const int64_t column : SomeColumns(ffn.intermediate())) {
    for (int64_t row = 0; row < n.rows(); ++row) {
      const Sum up = Product(ffn.up, column, n, row, ffn.up_bias.At(0, column));
      const Sum first = ffn.tested.gated() ? Product(ffn.gate, column, n, row, 0) : up;
      const Sum factor = ffn.tested.gated() ? up : Sum{1, 0};
      const Sum a = {ActivatedFp64(activation, first.value), SlopeMax(activation) * first.error};
      const double want = a.value * factor.value;
      misses.Check(row, column, product.At(row, column), want,
                   a.error * std::fabs(factor.value) + std::fabs(a.value) * factor.error +
                       a.error * factor.error + (u + units * kFp32Unit) * std::fabs(want) +
                       0x1p-25);
    }
  }
  return misses.Text();
}

// Some columns of y, FP32, from the product that the GPU computed.
std::string CheckDown(const Ffn& ffn, const Tensor& x, const Tensor& residual,
                      const Tensor& product, const Tensor& y) {
  Misses misses;
  for (const int64_t column : SomeColumns(ffn.hidden())) {
    for (int64_t row = 0; row < product.rows(); ++row) {
      const Sum down = Product(ffn.down, column, product, row, ffn.down_bias.At(0, column));
      const double h = x.At(row, column) + residual.At(row, column);
      misses.Check(row, column, y.At(row, column), h + down.value,
                   down.error + 2 * kFp32Unit * (std::fabs(h) + std::fabs(h + down.value)));
    }
  }
  return misses.Text();
}

TEST_P(GpuFewTokens, EveryStageIsWithinItsBound) {
  for (const Size& size : sizes()) {
    const Ffn ffn(GetParam(), size);
    const FewTokens few = Packed(ffn);
    const bool large = size.hidden * size.intermediate > 20000000;
    for (const int64_t tokens : {1, 8, 13, 32, 50, 128}) {
      if ((large || !all_sizes()) && (tokens == 8 || tokens == 50)) continue;
      SCOPED_TRACE(absl::StrCat(size.hidden, "/", size.intermediate, ", ", tokens, " tokens"));
      const Tensor x = Uniform(dtype(), tokens, size.hidden, 1, 5);
      const Tensor residual = Uniform(dtype(), tokens, size.hidden, 1, 6);
      const DeviceRows device_x(x.Copy());
      const DeviceRows device_residual(residual.Copy());
      DeviceRows y(DType::kF32, tokens, size.hidden);
      Lane lane(ffn, few);
      lane.Enqueue(device_x, &device_residual, true, 0, tokens, y.view());
      lane.Wait();
      const auto [n, product] = lane.Inner(tokens);
      // Each stage from what the GPU gave it, so that the first wrong one shows.
      EXPECT_EQ(CheckNorm(ffn, x, residual, n), "") << "norm";
      EXPECT_EQ(CheckGateUp(ffn, n, product), "") << "gate and up";
      EXPECT_EQ(CheckDown(ffn, x, residual, product, y.Read()), "") << "down";
      if (HasFailure()) return;
    }
  }
}

TEST_P(GpuFewTokens, ARowHasItsBitsAtAnyNumberOfTokensAndInAnyPosition) {
  for (const Size& size :
       {Size{256, 28672}, Size{576, 1536}, Size{2560, 6912}, Size{4096, 14336}}) {
    if (!all_sizes() && size.hidden > 576) continue;
    const Ffn ffn(GetParam(), size);
    const FewTokens few = Packed(ffn);
    const DeviceRows x(Uniform(dtype(), kFewTokensMax, size.hidden, 1, 5));
    const DeviceRows residual(Uniform(dtype(), kFewTokensMax, size.hidden, 1, 6));
    Lane lane(ffn, few);
    for (const DType y_dtype : {DType::kF32, dtype()}) {
      const Tensor all = Outputs(lane, ffn, x, &residual, true, y_dtype, 0, kFewTokensMax);
      for (int64_t count = 1; count <= kFewTokensMax; ++count) {
        if (!all_sizes() && count % 8 > 1 && count % 8 < 7) continue;  // the ends of widths
        for (const int64_t first :
             {int64_t{0}, (kFewTokensMax - count) / 3, int64_t{kFewTokensMax} - count}) {
          const Tensor part = Outputs(lane, ffn, x, &residual, true, y_dtype, first, count);
          ASSERT_EQ(Difference(all, first, part), "")
              << size.hidden << "/" << size.intermediate << ", " << count << " rows from " << first
              << ", y " << std::string(Name(y_dtype));
        }
      }
    }
  }
}

// The composed products, which take rows that lie badly, give those same bits.
TEST_P(GpuFewTokens, TheComposedProductsGiveTheSameBits) {
  constexpr int64_t kRows = 1030;
  for (const Size& size : sizes()) {
    if (size.hidden * size.intermediate > 100000000) continue;  // minutes of this test's own work
    SCOPED_TRACE(absl::StrCat(size.hidden, "/", size.intermediate));
    Ffn ffn(GetParam(), size);
    const FewTokens few = Packed(ffn);
    const DeviceRows x(Uniform(dtype(), kRows, size.hidden, 1, 5));
    Lane lane(ffn, few);
    const Buffer workspace =
        GpuBuffer(FeedForwardWorkspaceBytes(ffn.weights, kRows, Rounding::kFused));
    for (const int64_t rows : {1, 100, 128, 129, 300, 1030}) {
      DeviceRows y(DType::kF32, rows, size.hidden);
      const absl::Status status =
          FeedForward(lane.stream().context(), x.view(0, rows), ffn.weights, Rounding::kFused,
                      y.view(), absl::MakeSpan(workspace.data(), workspace.size()));
      ASSERT_TRUE(status.ok()) << status;
      lane.Wait();
      const Tensor composed = y.Read().Copy();
      for (int64_t first = 0; first < rows; first += kFewTokensMax) {
        const int64_t count = std::min<int64_t>(kFewTokensMax, rows - first);
        const Tensor part = Outputs(lane, ffn, x, nullptr, false, DType::kF32, first, count);
        ASSERT_EQ(Difference(composed, first, part), "")
            << "composed of " << rows << " rows against rows from " << first
            << "; products: " << ffn.weights.gate.description() << ", "
            << ffn.weights.down.description();
      }
    }
  }
}

TEST_P(GpuFewTokens, ThePathIsThatOfItsKernels) {
  const Size size{4096, 14336};
  const Ffn ffn(GetParam(), size);
  const FewTokens few = Packed(ffn);
  constexpr int64_t kRows = 77;
  const DeviceRows x(Uniform(dtype(), kRows, size.hidden, 1, 5));
  const DeviceRows residual(Uniform(dtype(), kRows, size.hidden, 1, 6));
  Lane lane(ffn, few);
  const Tensor fused = Outputs(lane, ffn, x, &residual, true, dtype(), 0, kRows);
  const DeviceRows n(dtype(), kRows, size.hidden), h(DType::kF32, kRows, size.hidden),
      down(DType::kF32, kRows, size.hidden);
  DeviceRows y(dtype(), kRows, size.hidden);
  const ExecutionContext context = lane.stream().context();
  const Buffer workspace =
      GpuBuffer(FeedForwardWorkspaceBytes(ffn.weights, kRows, Rounding::kFused));
  const RmsNormParams params{kFfnEps, 0, RmsNormForm::kOnce};
  absl::Status status = AddRmsNorm(context, x.view(), residual.view(), ffn.device_norm.vector(),
                                   params, Rounding::kFused, n.view(), h.view());
  if (status.ok()) {
    status = FeedForward(context, n.view(), ffn.weights, Rounding::kFused, down.view(),
                         absl::MakeSpan(workspace.data(), workspace.size()));
  }
  if (status.ok()) status = AddResidual(context, h.view(), down.view(), y.view());
  ASSERT_TRUE(status.ok()) << status;
  lane.Wait();
  EXPECT_EQ(FirstDifference(fused, y.Read()), "");
}

TEST_P(GpuFewTokens, TheProofOnTheWeightsHolds) {
  for (const Size& size : {Size{576, 1536}, Size{4096, 14336}, Size{5120, 13824}}) {
    if (!all_sizes() && size.hidden > 4096) continue;
    Ffn ffn(GetParam(), size);
    const absl::Status status = PrepareFewTokens(ffn.weights);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_NE(ffn.weights.few, nullptr) << ffn.weights.no_few;
    EXPECT_TRUE(ffn.weights.few->as_products) << size.hidden << "/" << size.intermediate;
    if (ffn.plan.segments > 1) {
      EXPECT_EQ(ffn.weights.few->library_down, nullptr);
    }
  }
}

TEST_P(GpuFewTokens, ThousandsOfReplaysOnTwoLanesWithoutAWrongBit) {
  constexpr int64_t kRows = 16;
  constexpr int64_t kInputs = 8;
  const Size size{4096, 14336};
  const Ffn ffn(GetParam(), size);
  const FewTokens few = Packed(ffn);
  const DeviceRows x(Uniform(dtype(), kRows * kInputs, size.hidden, 1, 5));
  Lane alone(ffn, few);
  const Tensor expected = Outputs(alone, ffn, x, nullptr, true, dtype(), 0, kRows * kInputs);
  const Replays replays{
      all_sizes() ? 10000 : 1000, 50, kRows, kInputs,
      [](int64_t round, int64_t i, int64_t lane) { return (round + i * 3 + lane * 5) % kInputs; }};
  EXPECT_EQ(WrongReplays(ffn, few, x, expected, replays), 0)
      << "of " << replays.count << " replays";
}

}  // namespace
}  // namespace fuseblock::testing
