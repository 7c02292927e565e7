#include "kernels/base/dtype.h"

namespace fuseblock {
namespace {

constexpr DTypeTraits kTraits[] = {
    {DType::kF32, "FP32", "F32", "fp32", 4, 0x1p-23},
    {DType::kF16, "FP16", "F16", "fp16", 2, 0x1p-10},
    {DType::kBF16, "BF16", "BF16", "bf16", 2, 0x1p-7},
    {DType::kI32, "INT32", "I32", "int32", 4, 0},
    {DType::kI64, "INT64", "I64", "int64", 8, 0},
};

}  // namespace

const DTypeTraits& Traits(DType dtype) { return kTraits[static_cast<int>(dtype)]; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeTraits& traits : kTraits) {
    if (traits.name == name) return traits.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromSafetensors(std::string_view name) {
  for (const DTypeTraits& traits : kTraits) {
    if (traits.safetensors == name) return traits.dtype;
  }
  return std::nullopt;
}

}  // namespace fuseblock
