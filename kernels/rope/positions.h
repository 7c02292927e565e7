// Reading a position from bytes that may lie anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fuseblock {

inline int64_t ReadPosition(const void* positions, int64_t index) {
  int64_t position;
  std::memcpy(&position, static_cast<const std::byte*>(positions) + index * 8, 8);
  return position;
}

}  // namespace fuseblock
