// What is done to a product's FP32 sums, after the bias and before their rounding.
#pragma once

namespace fuseblock {

enum class LinearEpilogue : int { kNone, kGeluErf, kGeluTanh };  // the CUDA launchers' int, too

}  // namespace fuseblock
