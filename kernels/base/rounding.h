// Where values are rounded to the dtype on their way through a block, and the parameters of
// RMSNorm, which several kernels share.
#pragma once

namespace fuseblock {

enum class Rounding {
  kFused,  // FP32 inside, one rounding per tensor that must be stored
  kHf,     // wherever Hugging Face's eager code stores a tensor
};

// What RMSNorm rounds, by family (n = x / sqrt(mean(x^2) + eps) in FP32, w the stored weight):
enum class RmsNormForm {
  kOnce,             // R2, R3: ((w + offset) * n) rounded once
  kNormalisedFirst,  // R1: n rounded to the dtype, times w rounded to the dtype
};

struct RmsNormParams {
  float eps = 1e-6f;
  float weight_offset = 0.0f;  // 1 for Gemma
  RmsNormForm form = RmsNormForm::kOnce;
};

}  // namespace fuseblock
