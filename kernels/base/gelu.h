// The two forms of GELU, which are never substituted for one another: they differ by up to 4.8e-4.
#pragma once

namespace fuseblock {

enum class GeluForm {
  kErf,   // x Phi(x) = x (1 + erf(x / sqrt(2))) / 2
  kTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
};

// From where on gelu(-|x|) is 0 in FP32.
inline constexpr float kGeluErfZero = 15.0f, kGeluTanhZero = 11.0f;

}  // namespace fuseblock
