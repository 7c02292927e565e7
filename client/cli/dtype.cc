// Conversions of single elements: for summaries and random inputs, where speed is no matter.
#include "client/cli/dtype.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fuseblock::cli {
namespace {

constexpr DataTypeTraits kTypes[] = {
    {v1::DATA_TYPE_FP32, "FP32", "F32", "<f4", 4},
    {v1::DATA_TYPE_FP16, "FP16", "F16", "<f2", 2},
    {v1::DATA_TYPE_BF16, "BF16", "BF16", "<V2", 2},
    {v1::DATA_TYPE_INT32, "INT32", "I32", "<i4", 4},
    {v1::DATA_TYPE_INT64, "INT64", "I64", "<i8", 8},
};
constexpr DataTypeTraits kUnknown = {v1::DATA_TYPE_UNSPECIFIED, "?", "?", "?", 0};

template <typename T>
T Load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Store(std::byte* data, int64_t i, T value) {
  std::memcpy(data + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

double HalfValue(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const int fraction = bits & 0x3FF;
  double value = 0;
  if (exponent == 0x1F) {
    value = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(fraction + 1024, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

uint16_t HalfBits(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7E00;
  if (magnitude == 0) return sign;               // has no exponent
  if (magnitude >= 65520) return sign | 0x7C00;  // halfway between the largest number and 2^16
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // Units of the last place: 2^(exponent - 11), and no smaller than 2^-24 among the subnormals.
  const int unit = std::max(exponent - 11, -24);
  const double units = std::nearbyint(std::ldexp(magnitude, -unit));
  // A carry into the next power of two lands in the exponent field by itself.
  const int field = std::max(unit + 24, 0) * 1024;
  return sign | static_cast<uint16_t>(field + units);
}

uint16_t Bf16Bits(double value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof(bits));
  if (std::isnan(single)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace

absl::Span<const DataTypeTraits> AllDataTypes() { return kTypes; }

const DataTypeTraits& Traits(v1::DataType type) {
  for (const DataTypeTraits& traits : kTypes) {
    if (traits.type == type) return traits;
  }
  return kUnknown;
}

double ElementAt(v1::DataType type, const std::byte* data, int64_t i) {
  switch (type) {
    case v1::DATA_TYPE_FP32:
      return Load<float>(data, i);
    case v1::DATA_TYPE_FP16:
      return HalfValue(Load<uint16_t>(data, i));
    case v1::DATA_TYPE_BF16: {
      const uint32_t bits = static_cast<uint32_t>(Load<uint16_t>(data, i)) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
    case v1::DATA_TYPE_INT32:
      return Load<int32_t>(data, i);
    case v1::DATA_TYPE_INT64:
      return static_cast<double>(Load<int64_t>(data, i));
    default:
      return NAN;
  }
}

void SetElement(v1::DataType type, std::byte* data, int64_t i, double value) {
  switch (type) {
    case v1::DATA_TYPE_FP32:
      return Store(data, i, static_cast<float>(value));
    case v1::DATA_TYPE_FP16:
      return Store(data, i, HalfBits(value));
    case v1::DATA_TYPE_BF16:
      return Store(data, i, Bf16Bits(value));
    case v1::DATA_TYPE_INT32:
      return Store(data, i, static_cast<int32_t>(value));
    case v1::DATA_TYPE_INT64:
      return Store(data, i, static_cast<int64_t>(value));
    default:
      return;
  }
}

std::string ShapeText(absl::Span<const int64_t> shape, v1::DataType type) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "] ", Traits(type).name);
}

}  // namespace fuseblock::cli
