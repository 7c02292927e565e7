#include "tests/golden/eager_interval.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/half.h"

namespace fuseblock::testing {
namespace {

constexpr double kUnit = 0x1p-24;  // one rounding in FP32, relative

double Largest(const Interval& x) { return std::max(std::abs(x.low), std::abs(x.high)); }

Interval Product(const Interval& x, const Interval& y) {
  const auto [low, high] =
      std::minmax({x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high});
  return {low, high};
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

}  // namespace

Interval EagerArithmetic::Rounded(double low, double high, double slack) const {
  return VisitFloat(dtype_, [&](auto type) {
    using T = decltype(type);
    return Interval{ToFloat(FromDouble<T>(low - slack)), ToFloat(FromDouble<T>(high + slack))};
  });
}

Row EagerArithmetic::Add(const Row& x, const Row& y) const {
  Row out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    out[i] = Rounded(x[i].low + y[i].low, x[i].high + y[i].high, 0);
  }
  return out;
}

Row EagerArithmetic::Norm(const Row& x, const std::vector<double>& weight, double eps) const {
  const double count = static_cast<double>(x.size());
  double low = 0, high = 0;  // the sum of squares
  for (const Interval& value : x) {
    const Interval square = Product(value, value);
    low += value.low <= 0 && value.high >= 0 ? 0 : std::max(square.low, 0.0);
    high += square.high;
  }
  // `count` roundings in the sum of squares, one in the mean and one in + eps, halved by the root;
  // the root, the division and the product with x round once each.
  const double slack = ((count + 2) / 2 + 3) * kUnit;
  const double largest = (1 + slack) / std::sqrt(low / count + eps);
  const double smallest = (1 - slack) / std::sqrt(high / count + eps);
  Row out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const Interval exact = Product(x[i], {smallest, largest});
    const Interval normalised = Rounded(exact.low, exact.high, 0);
    const Interval scaled = Product(normalised, {weight[i], weight[i]});
    out[i] = Rounded(scaled.low, scaled.high, 0);
  }
  return out;
}

Row EagerArithmetic::Linear(const Row& x, const std::vector<double>& weight,
                            const std::vector<double>& bias) const {
  const size_t k = x.size(), n = weight.size() / k;
  Row out(n);
  for (size_t row = 0; row < n; ++row) {
    const double start = bias.empty() ? 0 : bias[row];
    double low = start, high = start, magnitude = std::abs(start);
    for (size_t i = 0; i < k; ++i) {
      const double w = weight[row * k + i];
      low += std::min(w * x[i].low, w * x[i].high);
      high += std::max(w * x[i].low, w * x[i].high);
      magnitude += std::abs(w) * Largest(x[i]);
    }
    // A rounding for each product and one for each addition on a term's way: k + 1 at most.
    const double roundings = static_cast<double>(k) + (bias.empty() ? 0 : 1);
    out[row] = Rounded(low, high, (roundings + 1) * kUnit * magnitude);
  }
  return out;
}

Row EagerArithmetic::Gated(const Row& gate, const Row& up) const {
  constexpr double kMinimum = -1.2784645427610738;  // where silu has its only extremum
  // x / (1 + exp(-x)): two units for an exp within 1 ULP, one for the addition, one for the
  // division.
  constexpr double kSlack = 4 * kUnit;
  Row out(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    auto [low, high] = std::minmax({Silu(gate[i].low), Silu(gate[i].high)});
    if (gate[i].low < kMinimum && gate[i].high > kMinimum) low = Silu(kMinimum);
    const Interval silu = Rounded(low, high, kSlack * Largest({low, high}));
    const Interval product = Product(silu, up[i]);
    out[i] = Rounded(product.low, product.high, 0);
  }
  return out;
}

}  // namespace fuseblock::testing
