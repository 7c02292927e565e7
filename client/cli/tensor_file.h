// Tensors in files: NumPy's .npy (one, without a name) and .safetensors (any number, by name).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fuseblock/v1/block_service.pb.h"

namespace fuseblock::cli {

struct FileTensor {
  std::string name;  // "" from a .npy
  v1::DataType type = v1::DATA_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape;
  std::string data;  // row-major, little-endian
};

// The file's tensors, by its ending. INVALID_ARGUMENT naming the file, what was expected and what
// is there: Fortran order, big-endian, a dtype that the wire lacks, damage. In a .npy a two-byte
// void
// ("<V2", which ml_dtypes saves) is BF16.
absl::StatusOr<std::vector<FileTensor>> ReadTensors(const std::string& path);

// Writes a .npy (exactly one tensor) or a .safetensors, by the path's ending.
absl::Status WriteTensors(const std::string& path, absl::Span<const FileTensor> tensors);

}  // namespace fuseblock::cli
