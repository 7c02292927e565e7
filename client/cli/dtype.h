// The wire's element types by name, size and value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "fuseblock/v1/block_service.pb.h"

namespace fuseblock::cli {

struct DataTypeTraits {
  v1::DataType type;
  const char* name;         // "BF16"
  const char* safetensors;  // "BF16", "F32"
  const char* npy;          // NumPy's descr: "<f4"; "<V2" for BF16, as ml_dtypes saves it
  int size;                 // bytes
};

absl::Span<const DataTypeTraits> AllDataTypes();
// UNSPECIFIED and unknown numbers: name "?", size 0.
const DataTypeTraits& Traits(v1::DataType type);

// Element i of row-major, little-endian data.
double ElementAt(v1::DataType type, const std::byte* data, int64_t i);
// Writes the value as element i, rounded to nearest even.
void SetElement(v1::DataType type, std::byte* data, int64_t i, double value);

// "[4, 576] BF16"
std::string ShapeText(absl::Span<const int64_t> shape, v1::DataType type);

}  // namespace fuseblock::cli
