// The two 16-bit floating-point types on the host, with conversions that round to nearest even.
// A NaN stays a (quiet) NaN, overflow gives infinity, subnormals are kept.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/base/dtype.h"

namespace fuseblock {

struct Half {  // IEEE binary16
  uint16_t bits = 0;
};

struct BFloat16 {  // the upper half of binary32
  uint16_t bits = 0;
};

constexpr float ToFloat(float value) { return value; }

constexpr float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

constexpr float ToFloat(Half value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = value.bits & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in binary32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

constexpr BFloat16 ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};  // quiet, and never truncated to infinity
  }
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

constexpr Half ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return {static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu))};
  }
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};  // >= 65520
  if (magnitude < 0x38800000u) {  // below the smallest normal: count units of 2^-24
    // Adding 0.5 aligns the unit to binary32's last place, and its rounding is to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u))};
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

template <typename T>
constexpr T FromFloat(float value) {
  if constexpr (std::is_same_v<T, Half>) {
    return ToHalf(value);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(value);
  } else {
    return static_cast<T>(value);
  }
}

// FP64 to the dtype with one rounding: through binary32 rounded to odd, which loses no tie.
template <typename T>
T FromDouble(double value) {
  float narrow = static_cast<float>(value);
  if constexpr (!std::is_same_v<T, float>) {
    const double back = static_cast<double>(narrow);
    if (back != value && back == back) {
      uint32_t bits = std::bit_cast<uint32_t>(narrow);
      const bool away = (back > value) == (value > 0);
      if (away) --bits;  // truncate toward zero
      narrow = std::bit_cast<float>(bits | 1u);
    }
  }
  return FromFloat<T>(narrow);
}

template <DType>
struct DTypeToType;
template <>
struct DTypeToType<DType::kF32> {
  using Type = float;
};
template <>
struct DTypeToType<DType::kF16> {
  using Type = Half;
};
template <>
struct DTypeToType<DType::kBF16> {
  using Type = BFloat16;
};

// Calls f(T{}) with the host type of a floating dtype. Precondition: FP32, FP16 or BF16.
template <typename F>
decltype(auto) VisitFloat(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF16:
      return f(Half{});
    case DType::kBF16:
      return f(BFloat16{});
    default:
      return f(float{});
  }
}

// The same for two dtypes, of which the second is the first or FP32.
template <typename F>
decltype(auto) VisitFloats(DType first, DType second, F&& f) {
  return VisitFloat(
      first, [&](auto value) { return second == first ? f(value, value) : f(value, float{}); });
}

}  // namespace fuseblock
