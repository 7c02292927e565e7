// The safetensors format: an 8-byte little-endian length, a JSON header of that length, then the
// tensors' bytes. The header is untrusted input.
// Source: https://github.com/huggingface/safetensors, "Format".
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/tensor_view.h"
#include "server/model/mapped_file.h"

namespace fuseblock {

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

// One tensor as the header describes it.
struct SafetensorsEntry {
  std::string dtype;            // as spelled: "BF16", "F8_E4M3"
  std::vector<int64_t> shape;   // its product, and that times the element's size, fit in int64
  uint64_t begin = 0, end = 0;  // bytes from the start of the file
};
using SafetensorsHeader = std::map<std::string, SafetensorsEntry, std::less<>>;

// Parses the header of a file that has these bytes. Holds afterwards: every tensor lies inside the
// file and is aligned to its element; tensors neither overlap nor leave gaps nor bytes behind them;
// a tensor of a known dtype has exactly its shape's bytes. Errors: INVALID_ARGUMENT that names the
// tensor, expected and given (the caller adds the file).
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const std::byte> file);

// A mapped file with its parsed header. Errors name the file.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  const MappedFile& file() const { return file_; }

  // A view into the mapping. NOT_FOUND for an unknown name, INVALID_ARGUMENT for a dtype that is
  // not FP32, FP16 or BF16 or a rank above kMaxRank.
  absl::StatusOr<ConstTensorView> Find(std::string_view name) const;

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header);

  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace fuseblock
