// Row operands of launchers, as host code and launchers both ask about them. Includes no CUDA
// header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/cuda_table.h"
#include "kernels/base/dtype.h"

namespace fuseblock {

// Bytes of an element of a floating dtype.
inline int ElementBytes(const FuseblockCudaRows& rows) {
  return rows.dtype == static_cast<int>(DType::kF32) ? 4 : 2;
}

// Whether every row of the operand starts on a 16-byte boundary.
inline bool Aligned16(const void* data, int64_t rows, int64_t stride, int element_size) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
         (rows <= 1 || stride * element_size % 16 == 0);
}
inline bool Aligned16(const FuseblockCudaRows& rows) {
  return Aligned16(rows.data, rows.rows, rows.stride, ElementBytes(rows));
}

inline bool IsDense(const FuseblockCudaRows& rows) {
  return rows.rows <= 1 || rows.stride == rows.cols;
}

// Rows [first, first + count).
inline FuseblockCudaRows RowsFrom(const FuseblockCudaRows& rows, int64_t first, int64_t count) {
  FuseblockCudaRows part = rows;
  part.data = static_cast<std::byte*>(rows.data) + first * rows.stride * ElementBytes(rows);
  part.rows = count;
  return part;
}

}  // namespace fuseblock
