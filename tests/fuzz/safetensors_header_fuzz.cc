// Feeds whole files to the safetensors header's parser. Whatever it accepts must keep the promises
// of safetensors.h, checked here in other words than the parser's own.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "server/model/safetensors.h"

namespace {

void Require(bool promise) {
  if (!promise) std::abort();
}

void CheckPromises(const fuseblock::SafetensorsHeader& header, uint64_t file_size) {
  uint64_t header_end = file_size;
  uint64_t covered = 0;
  for (const auto& [name, entry] : header) {
    Require(entry.begin <= entry.end && entry.end <= file_size);
    header_end = std::min(header_end, entry.begin);
    covered += entry.end - entry.begin;
    int64_t elements = 1;
    for (int64_t extent : entry.shape) {
      Require(extent >= 0);
      Require(!__builtin_mul_overflow(elements, extent, &elements));
    }
    const auto dtype = fuseblock::DTypeFromSafetensors(entry.dtype);
    if (!dtype.has_value()) continue;
    const uint64_t size = static_cast<uint64_t>(fuseblock::SizeOf(*dtype));
    Require(static_cast<uint64_t>(elements) == (entry.end - entry.begin) / size);
    Require((entry.end - entry.begin) % size == 0);
    Require(entry.begin == entry.end || entry.begin % size == 0);
    for (const auto& [other_name, other] : header) {
      if (&other == &entry || other.begin == other.end || entry.begin == entry.end) continue;
      Require(other.end <= entry.begin || entry.end <= other.begin);
    }
  }
  // No gap and nothing behind the last tensor: the tensors fill the file from the first one on.
  if (!header.empty()) Require(covered == file_size - header_end);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly that size: a read behind it is seen by AddressSanitizer.
  const std::vector<uint8_t> file(data, data + size);
  const auto header = fuseblock::ParseSafetensorsHeader(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(file.data()), file.size()));
  if (header.ok()) {
    if (header->size() <= 64) CheckPromises(*header, size);
  } else {
    Require(!header.status().message().empty());
  }
  return 0;
}
