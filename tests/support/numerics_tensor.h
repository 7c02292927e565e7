// Tensors for the numerical tests: rows in host memory at any alignment and stride, with guard
// bytes around every row, so that a write outside the operand shows.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/tensor_view.h"

namespace fuseblock::testing {

struct Layout {
  int64_t offset = 0;   // elements that the first row lies beyond a 64-byte boundary
  int64_t padding = 0;  // elements between one row's end and the next row's begin
};

// Rows x columns of a dtype. The last element ends exactly at the end of the allocation, so that a
// sanitizer sees a read beyond it.
class Tensor {
 public:
  Tensor(DType dtype, int64_t rows, int64_t columns, Layout layout = {});

  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t stride() const { return columns_ + layout_.padding; }

  // A floating value, exact; an integer dtype's through the same double.
  double At(int64_t row, int64_t column) const;
  // Rounds to nearest even, once.
  void Set(int64_t row, int64_t column, double value);
  uint64_t Bits(int64_t row, int64_t column) const;

  // The whole allocation, from a 64-byte boundary.
  std::byte* memory() const { return memory_.get(); }
  size_t memory_bytes() const { return bytes_; }
  // The first element, in the host's copy or at the same place in a copy elsewhere.
  std::byte* Data(std::byte* base) const { return base + layout_.offset * SizeOf(dtype_); }

  // Whether every byte outside the rows is as it was made.
  bool GuardsIntact() const;

  // A tensor of `indices.size()` rows, row i a copy of this one's row indices[i].
  Tensor Gather(const std::vector<int64_t>& indices, Layout layout = {}) const;
  // The same values in another layout or floating dtype.
  Tensor Copy(Layout layout = {}) const;
  Tensor Cast(DType dtype) const;

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  DType dtype_;
  int64_t rows_, columns_;
  Layout layout_;
  size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

// "row 3, column 7: 0x3f80 (1) and 0x3f81 (1.0078125)" for the first cell whose bits differ, or
// empty when the two have the same shape and bits. Any NaN equals any NaN.
std::string FirstDifference(const Tensor& a, const Tensor& b);

}  // namespace fuseblock::testing
