// LayerNorm.
#include "kernels/layer_norm/layer_norm.h"

#include <cmath>

#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

constexpr float kEps = 1e-5f;
// So small that FP16 has no such number.
constexpr float kSmallEps = 1e-12f;
// The magnitude whose squares, 262,144 of them summed, stay in FP32's range.
constexpr double kSquareMax = 1e16;
constexpr double kWeightMax = 16;

// A row's roundings beside the chain of a sum, for a usual row: see RowErrors.
double LayerNormRoundings(int64_t columns) { return SumChain(columns) / 2 + 12; }

// What is true of a row, in FP64, and the errors that follow, as multiples of u = 2^-24.
//
// What the sums are about differs from the mean by at most off = (chain + 2) u mean|x|, the error
// of a first mean, and a quarter of a deviation, or for 16-bit x two deviations. The sum of the
// differences, whose rounding is (chain + 3) u times their mean, puts it right, up to its last
// rounding: mean_error. The variance is a sum of squares about m, less off^2: each part's rounding,
// relative to variance + eps, halved by the root, and one each for eps, root, reciprocal.
struct RowErrors {
  double mean = 0, root = 0;  // exact
  double mean_error = 0;      // absolute
  double scale_error = 0;     // relative

  RowErrors(const Tensor& x, int64_t row, float eps) {
    const int64_t columns = x.columns();
    const double count = static_cast<double>(columns), chain = SumChain(columns);
    double sum = 0, rest = 0, magnitude = 0, deviation = 0, squares = 0;
    for (int64_t i = 0; i < columns; ++i) sum += x.At(row, i);
    for (int64_t i = 0; i < columns; ++i) rest += x.At(row, i) - sum / count;
    mean = sum / count + rest / count;
    for (int64_t i = 0; i < columns; ++i) {
      const double d = x.At(row, i) - mean;
      magnitude += std::abs(x.At(row, i)) / count;
      deviation += std::abs(d) / count;
      squares += d * d / count;
    }
    root = std::sqrt(squares + static_cast<double>(eps));
    const double off = (chain + 2) * kUnitRoundoffFp32 * magnitude +
                       (x.dtype() == DType::kF32 ? 0.25 : 2) * std::sqrt(squares);
    const double rest_error = (chain + 3) * (deviation + off);
    mean_error = std::abs(mean) + rest_error;
    const double variance_error = (chain + 4) * (squares + off * off) + 2 * off * rest_error;
    scale_error = variance_error / (root * root) / 2 + 3;
  }
};

// n = (x - mean) * scale has the mean's error, and relative to itself that of the scale, of the
// difference and of the product; then the weight's product and the bias's sum.
std::function<double(int64_t, int64_t)> Magnitudes(const std::vector<Tensor>& inputs,
                                                   const Tensor* weight, const Tensor* bias,
                                                   float eps) {
  std::vector<RowErrors> rows;
  const Tensor& x = inputs[0];
  for (int64_t row = 0; row < x.rows(); ++row) rows.emplace_back(x, row, eps);
  return [rows, &x, weight, bias](int64_t row, int64_t column) {
    const RowErrors& errors = rows[static_cast<size_t>(row)];
    const double n = std::abs(x.At(row, column) - errors.mean) / errors.root;
    const double w = weight == nullptr ? 1 : std::abs(weight->At(0, column));
    const double b = bias == nullptr ? 0 : std::abs(bias->At(0, column));
    const double units =
        w * (errors.mean_error / errors.root + n * (errors.scale_error + 3)) + (w * n + b);
    return units / LayerNormRoundings(x.columns());
  };
}

struct Columns {
  std::string name;
  bool weight, bias;
  float eps = kEps;
};

Case LayerNormCase(DType x, DType y, const Columns& columns, DType w) {
  Case c;
  c.name = absl::StrCat(Label(x), "_to_", Label(y), columns.name);
  c.inputs = {{"x", x, OperandKind::kRows, kSquareMax}};
  const size_t weight_at = c.inputs.size();
  if (columns.weight) c.inputs.push_back({"weight", w, OperandKind::kVector, kWeightMax});
  const size_t bias_at = c.inputs.size();
  if (columns.bias) c.inputs.push_back({"bias", w, OperandKind::kVector, kWeightMax});
  c.outputs = {{"y", y}};
  OutputError error;
  error.fp32_roundings = LayerNormRoundings;
  error.magnitudes = [=](const std::vector<Tensor>& inputs) {
    return Magnitudes(inputs, columns.weight ? &inputs[weight_at] : nullptr,
                      columns.bias ? &inputs[bias_at] : nullptr, columns.eps);
  };
  error.cancels = true;
  c.errors = {error};
  if (x == y) c.in_place.push_back({0});
  c.run = [=](const std::string& name, const ExecutionContext& context, Views in, Views out) {
    std::optional<ConstTensorView> weight, bias;
    if (columns.weight) weight = in[weight_at];
    if (columns.bias) bias = in[bias_at];
    FUSEBLOCK_ASSIGN_OR_RETURN(const auto args,
                               CheckLayerNorm(in[0], weight, bias, columns.eps, out[0]));
    return RunNamed(LayerNormImplementations(), name, context, args);
  };
  return c;
}

}  // namespace

std::vector<Case> LayerNormCases() {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    const std::string small = absl::StrCat("_w", Label(y), "_b_small_eps");
    cases.push_back(LayerNormCase(y, y, {small, true, true, kSmallEps}, y));
    for (const DType x : WithFp32(y)) {
      cases.push_back(LayerNormCase(x, y, {"", false, false}, y));
      for (const DType w : WithFp32(y)) {
        const std::string label = Label(w);
        cases.push_back(LayerNormCase(x, y, {absl::StrCat("_w", label, "_b"), true, true}, w));
        cases.push_back(LayerNormCase(x, y, {absl::StrCat("_w", label), true, false}, w));
        cases.push_back(LayerNormCase(x, y, {absl::StrCat("_b", label), false, true}, w));
      }
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
