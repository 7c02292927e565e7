// Element types and what is true of each: one table, asked by every layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fuseblock {

enum class DType : uint8_t { kF32, kF16, kBF16, kI32, kI64 };

inline constexpr DType kFloatDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

struct DTypeTraits {
  DType dtype;
  std::string_view name;         // the wire's and the documents' name: "BF16"
  std::string_view safetensors;  // the checkpoint's name: "BF16", "F32", "I64"
  std::string_view label;        // the records' name: "bf16"
  int size;                      // bytes
  double epsilon;                // distance from 1 to the next value; 0 for integers
};

const DTypeTraits& Traits(DType dtype);

inline int SizeOf(DType dtype) { return Traits(dtype).size; }
inline std::string_view Name(DType dtype) { return Traits(dtype).name; }

// The dtype of that wire name ("FP32", "BF16", ...), exactly as spelled; nullopt for any other.
std::optional<DType> DTypeFromName(std::string_view name);
// The same for safetensors' spelling ("F32", "BF16", "I64").
std::optional<DType> DTypeFromSafetensors(std::string_view name);

}  // namespace fuseblock
