// Element access for the FP64 references: exact reads, writes with one rounding. Slow and plain.
#pragma once

#include <cstdint>

#include "kernels/base/half.h"
#include "kernels/base/tensor_view.h"

namespace fuseblock {

inline double ReadDouble(const void* data, DType dtype, int64_t index) {
  return VisitFloat(dtype, [&](auto type) {
    return static_cast<double>(ToFloat(static_cast<const decltype(type)*>(data)[index]));
  });
}

// Rounds to nearest even, once.
inline void WriteDouble(void* data, DType dtype, int64_t index, double value) {
  VisitFloat(dtype, [&](auto type) {
    static_cast<decltype(type)*>(data)[index] = FromDouble<decltype(type)>(value);
  });
}

// The value after it was stored in that dtype.
inline double RoundedTo(DType dtype, double value) {
  return VisitFloat(dtype, [&](auto type) {
    return static_cast<double>(ToFloat(FromDouble<decltype(type)>(value)));
  });
}

}  // namespace fuseblock
