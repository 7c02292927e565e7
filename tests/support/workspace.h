// A workspace of exactly the bytes that were asked for, filled with NaN, between guard bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace fuseblock::testing {

class Workspace {
 public:
  explicit Workspace(size_t bytes) : lines_(bytes / sizeof(Line) + 3), bytes_(bytes) {
    std::fill_n(all(), lines_.size() * sizeof(Line), kGuard);
    std::fill_n(data(), bytes_, std::byte{0xFF});  // a NaN in every floating dtype
  }
  absl::Span<std::byte> span() { return {data(), bytes_}; }

  bool GuardsIntact() {
    const auto guard = [](std::byte b) { return b == kGuard; };
    return std::all_of(all(), data(), guard) &&
           std::all_of(data() + bytes_, all() + lines_.size() * sizeof(Line), guard);
  }

 private:
  static constexpr std::byte kGuard{0xA5};
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  std::byte* all() { return lines_.front().bytes; }
  std::byte* data() { return lines_[1].bytes; }

  std::vector<Line> lines_;
  size_t bytes_;
};

}  // namespace fuseblock::testing
