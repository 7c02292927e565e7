#include "tests/support/numerics_values.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fuseblock::testing {
namespace {

struct Range {
  double smallest, largest;  // subnormal, finite
};

Range RangeOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {0x1p-24, 65504};
    case DType::kBF16:
      return {0x1p-133, 0x1.FEp127};
    default:
      return {0x1p-149, 0x1.FFFFFEp127};
  }
}

double Adversarial(Random& random, DType dtype) {
  const Range range = RangeOf(dtype);
  const double epsilon = Traits(dtype).epsilon;
  const double values[] = {0.0,
                           -0.0,
                           1,
                           -1,
                           1 + epsilon,
                           1 - epsilon / 2,
                           0.5,
                           2048,
                           2049,
                           3,
                           -3,
                           range.smallest,
                           -range.smallest,
                           3 * range.smallest,
                           range.smallest / epsilon,
                           range.largest,
                           -range.largest,
                           255.9,
                           261.75,
                           -86.5,
                           -87.25,
                           -88.5,
                           -88.75,
                           -90,
                           -91.5,
                           -100,
                           -103.5,
                           -120,
                           -1e4,
                           88.5,
                           90,
                           20,
                           -20,
                           1e-3,
                           -1e-3};
  const int64_t count = static_cast<int64_t>(std::size(values));
  const double value = values[random.Below(count)];
  return std::clamp(value, -range.largest, range.largest);
}

}  // namespace

const char* Name(Pattern pattern) {
  constexpr const char* kNames[] = {"normal", "exponents", "adversarial", "not_finite"};
  return kNames[static_cast<int>(pattern)];
}

uint64_t Random::Next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double Random::Normal() {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += Uniform();
  return sum;
}

void Fill(Tensor& tensor, Pattern pattern, double magnitude_max, uint64_t seed) {
  Random random(seed);
  const Range range = RangeOf(tensor.dtype());
  const double largest = std::min(range.largest, magnitude_max);
  const double low = std::log2(range.smallest), high = std::log2(largest);
  for (int64_t row = 0; row < tensor.rows(); ++row) {
    for (int64_t column = 0; column < tensor.columns(); ++column) {
      double value = random.Normal();
      if (pattern == Pattern::kExponents) {
        value = std::copysign(std::exp2(low + (high - low) * random.Uniform()), value);
      } else if (pattern == Pattern::kAdversarial && random.Below(4) != 0) {
        value = Adversarial(random, tensor.dtype());
      }
      tensor.Set(row, column, std::clamp(value, -largest, largest));
    }
    // Two rows in three stay finite: what is not must not reach them.
    if (pattern == Pattern::kNotFinite && row % 3 == 1) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      constexpr double kValues[] = {std::numeric_limits<double>::quiet_NaN(), kInfinity,
                                    -kInfinity};
      tensor.Set(row, random.Below(tensor.columns()), kValues[(row / 3) % 3]);
    }
  }
}

}  // namespace fuseblock::testing
