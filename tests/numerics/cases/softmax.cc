// Softmax, plain and masked.
#include "kernels/softmax/softmax.h"

#include <cmath>
#include <limits>

#include "kernels/softmax_masked/softmax_masked.h"
#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
// Where a mask's sum with x is rounded, that costs |x + mask| 2^-24: large ones say nothing.
constexpr double kMaskedMax = 1e4;

// A usual row's roundings, in units of 2^-24: the sum's chain, and what Powers says of a power.
double SoftmaxRoundings(int64_t columns) { return SumChain(columns) + 24; }

// A row's h = x (+ mask), its softmax, and their errors as multiples of 2^-24.
//
// A power e^(h - max) has the difference's rounding, |h - max|, and where h is a sum its own and
// the maximum's, |h| + |max|; 2 for the exponential, or for a 16-bit output 4 and the argument's
// product with log2 e: its rounding and the constant's, 2 |h - max|. The sum has its terms' errors,
// weighted, and its chain's; then the reciprocal and the product, one each.
struct RowErrors {
  std::vector<double> units;  // of each cell, times its value

  RowErrors(const std::vector<Tensor>& inputs, int64_t row, DType out) {
    const int64_t columns = inputs[0].columns();
    const bool masked = inputs.size() > 1;
    std::vector<double> h(static_cast<size_t>(columns)), y(h.size());
    double max = kMinusInfinity, sum = 0, sum_error = 0;
    for (size_t i = 0; i < h.size(); ++i) {
      for (const Tensor& input : inputs) h[i] += input.At(row, static_cast<int64_t>(i));
      max = std::max(max, h[i]);
    }
    units.resize(h.size());
    for (size_t i = 0; i < h.size(); ++i) {
      y[i] = std::exp(h[i] - max);
      if (y[i] == 0) continue;
      const double distance = max - h[i];
      units[i] = out == DType::kF32 ? 2 + distance : 4 + 3 * distance;
      if (masked) units[i] += std::abs(h[i]) + std::abs(max);
      sum += y[i];
      sum_error += y[i] * units[i];
    }
    for (size_t i = 0; i < h.size(); ++i) {
      units[i] = y[i] / sum * (units[i] + sum_error / sum + SumChain(columns) + 2);
    }
  }
};

OutputError SoftmaxError(DType out) {
  OutputError error;
  error.fp32_roundings = SoftmaxRoundings;
  error.magnitudes = [out](const std::vector<Tensor>& inputs) {
    std::vector<RowErrors> rows;
    for (int64_t row = 0; row < inputs[0].rows(); ++row) rows.emplace_back(inputs, row, out);
    return [rows, count = SoftmaxRoundings(inputs[0].columns())](int64_t row, int64_t column) {
      return rows[static_cast<size_t>(row)].units[static_cast<size_t>(column)] / count;
    };
  };
  return error;
}

}  // namespace

std::vector<Case> SoftmaxCases() {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    for (const DType x : WithFp32(y)) {
      Case c;
      c.name = absl::StrCat(Label(x), "_to_", Label(y));
      c.inputs = {{"x", x}};
      c.outputs = {{"y", y}};
      c.errors = {SoftmaxError(y)};
      if (x == y) c.in_place.push_back({0});
      c.run = [](const std::string& name, const ExecutionContext& context, Views in, Views out) {
        FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckUnary(in[0], out[0]));
        return RunNamed(SoftmaxImplementations(), name, context, args);
      };
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

namespace {

Case SoftmaxMaskedCase(DType x, DType y, std::optional<DType> mask) {
  Case c;
  c.name = absl::StrCat(Label(x), "_to_", Label(y), mask ? "_m" + Label(*mask) : "");
  c.inputs = {{"x", x, OperandKind::kRows, kMaskedMax}};
  if (mask) c.inputs.push_back({"mask", *mask, OperandKind::kRows, kMaskedMax});
  c.outputs = {{"y", y}};
  c.errors = {SoftmaxError(y)};
  if (x == y) c.in_place.push_back({0});
  if (mask == y) c.in_place.push_back({1});
  c.run = [](const std::string& name, const ExecutionContext& context, Views in, Views out) {
    std::optional<ConstTensorView> added;
    if (in.size() > 1) added = in[1];
    FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckSoftmaxMasked(in[0], added, out[0]));
    return RunNamed(SoftmaxMaskedImplementations(), name, context, args);
  };
  return c;
}

}  // namespace

std::vector<Case> SoftmaxMaskedCases() {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    for (const DType x : WithFp32(y)) {
      cases.push_back(SoftmaxMaskedCase(x, y, std::nullopt));
      for (const DType mask : WithFp32(y)) cases.push_back(SoftmaxMaskedCase(x, y, mask));
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
