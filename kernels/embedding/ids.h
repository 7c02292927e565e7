// Reading an id of either width, from bytes that may lie anywhere.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/base/dtype.h"

namespace fuseblock {

inline int64_t ReadId(const void* ids, DType dtype, int64_t index) {
  if (dtype == DType::kI32) {
    int32_t id;
    std::memcpy(&id, static_cast<const std::byte*>(ids) + index * 4, 4);
    return id;
  }
  int64_t id;
  std::memcpy(&id, static_cast<const std::byte*>(ids) + index * 8, 8);
  return id;
}

}  // namespace fuseblock
