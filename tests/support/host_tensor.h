// Tensors for tests: owned, at a chosen distance from alignment, between guard bytes, filled from a
// seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/half.h"
#include "kernels/base/tensor_view.h"

namespace fuseblock::testing {

class HostTensor {
 public:
  // `row_gap` elements lie between the rows of the last axis; the data starts `offset` bytes after
  // a 64-byte boundary. Every byte is 0xA5 at first.
  HostTensor(DType dtype, std::vector<int64_t> dims, int64_t row_gap = 0, size_t offset = 0)
      : dtype_(dtype), dims_(std::move(dims)), offset_(offset) {
    cols_ = dims_.empty() ? 1 : dims_.back();
    rows_ = 1;
    for (size_t i = 0; i + 1 < dims_.size(); ++i) rows_ *= dims_[i];
    stride_ = cols_ + row_gap;
    const int64_t bytes = rows_ * stride_ * SizeOf(dtype);
    lines_.resize(static_cast<size_t>(bytes) / kLine + 2 * kGuardLines + 2);
    for (Line& line : lines_) std::fill(std::begin(line.bytes), std::end(line.bytes), kGuardByte);
  }

  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  std::byte* row(int64_t r) { return data() + r * stride_ * SizeOf(dtype_); }
  const std::byte* row(int64_t r) const { return const_cast<HostTensor*>(this)->row(r); }
  size_t row_bytes() const { return static_cast<size_t>(cols_ * SizeOf(dtype_)); }

  TensorView view() {
    TensorView v(data(), dtype_, dims_);
    int64_t step = stride_;
    for (int i = v.rank - 2; i >= 0; --i) {
      v.stride[static_cast<size_t>(i)] = step;
      step *= v.shape[static_cast<size_t>(i)];
    }
    return v;
  }
  ConstTensorView view() const { return const_cast<HostTensor*>(this)->view(); }

  double at(int64_t r, int64_t c) const {
    return VisitFloat(dtype_, [&](auto value) {
      std::memcpy(&value, row(r) + c * static_cast<int64_t>(sizeof(value)), sizeof(value));
      return static_cast<double>(ToFloat(value));
    });
  }
  void set(int64_t r, int64_t c, float to) {
    VisitFloat(dtype_, [&](auto value) {
      value = FromFloat<decltype(value)>(to);
      std::memcpy(row(r) + c * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
    });
  }
  void fill(float value) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) set(r, c, value);
    }
  }

  // Whether every byte outside the rows is as it was at first.
  bool GuardsIntact() const {
    const std::byte* all = lines_.front().bytes;
    std::vector<bool> inside(lines_.size() * kLine, false);
    for (int64_t r = 0; r < rows_; ++r) {
      const size_t begin = static_cast<size_t>(row(r) - all);
      for (size_t i = 0; i < row_bytes(); ++i) inside[begin + i] = true;
    }
    for (size_t i = 0; i < inside.size(); ++i) {
      if (!inside[i] && all[i] != kGuardByte) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kLine = 64;
  static constexpr size_t kGuardLines = 2;
  static constexpr std::byte kGuardByte{0xA5};
  struct alignas(kLine) Line {
    std::byte bytes[kLine];
  };

  std::byte* data() { return lines_[kGuardLines].bytes + offset_; }

  DType dtype_;
  std::vector<int64_t> dims_;
  int64_t rows_, cols_, stride_;
  size_t offset_;
  std::vector<Line> lines_;
};

// Normal values times `scale`, rounded to the dtype; the same for the same seed on every machine.
inline void FillNormal(HostTensor& tensor, uint32_t seed, float scale = 1.0f) {
  std::mt19937 bits(seed);
  const auto uniform = [&] { return static_cast<double>(bits()) * 0x1p-32; };
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    for (int64_t c = 0; c < tensor.cols(); ++c) {
      // The sum of twelve uniform numbers: near enough to normal, and exact everywhere.
      double sum = -6;
      for (int i = 0; i < 12; ++i) sum += uniform();
      tensor.set(r, c, static_cast<float>(sum) * scale);
    }
  }
}

inline HostTensor NormalTensor(DType dtype, std::vector<int64_t> dims, uint32_t seed,
                               float scale = 1.0f) {
  HostTensor tensor(dtype, std::move(dims));
  FillNormal(tensor, seed, scale);
  return tensor;
}

// The rows of `a` from `first` on, `count` of them, are the rows of `b` bit for bit.
inline bool SameRows(const HostTensor& a, int64_t first, const HostTensor& b, int64_t b_first,
                     int64_t count) {
  for (int64_t r = 0; r < count; ++r) {
    if (std::memcmp(a.row(first + r), b.row(b_first + r), a.row_bytes()) != 0) return false;
  }
  return true;
}

}  // namespace fuseblock::testing
