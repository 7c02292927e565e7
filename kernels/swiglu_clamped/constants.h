// The model's constants, which every implementation reads.
#pragma once

namespace fuseblock {

constexpr double kSwiGluAlpha = 1.702;
constexpr float kSwiGluLimit = 7.0f;

// 1.702 as a sum of two FP32 values: the product with gate is exact to 2^-48, so that e^-1.702 gate
// keeps its precision where the exponent is large.
constexpr float kSwiGluAlphaHigh = static_cast<float>(kSwiGluAlpha);
constexpr float kSwiGluAlphaLow =
    static_cast<float>(kSwiGluAlpha - static_cast<double>(kSwiGluAlphaHigh));

}  // namespace fuseblock
