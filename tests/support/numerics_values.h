// Inputs for the numerical tests, drawn from a seed: the same on every machine.
#pragma once

#include <cstdint>

#include "tests/support/numerics_tensor.h"

namespace fuseblock::testing {

enum class Pattern {
  kNormal,       // about N(0, 1)
  kExponents,    // signs and magnitudes over the whole range, evenly in the exponent
  kAdversarial,  // zeros of both signs, subnormals, the largest finite values, halves of a last
                 // place, arguments where exp overflows or vanishes
  kNotFinite,    // N(0, 1) with NaN and both infinities in some rows
};
inline constexpr Pattern kPatterns[] = {Pattern::kNormal, Pattern::kExponents,
                                        Pattern::kAdversarial, Pattern::kNotFinite};
const char* Name(Pattern pattern);

// A sequence of 64-bit numbers (SplitMix64), defined here so that no library's version changes it.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // [0, 1)
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }
  double Normal();  // the sum of 12 uniforms, less 6

 private:
  uint64_t state_;
};

// Fills a floating tensor; no finite magnitude exceeds `magnitude_max`.
void Fill(Tensor& tensor, Pattern pattern, double magnitude_max, uint64_t seed);

}  // namespace fuseblock::testing
