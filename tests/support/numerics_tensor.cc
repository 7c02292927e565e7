#include "tests/support/numerics_tensor.h"

#include <cmath>
#include <cstring>
#include <new>

#include "absl/strings/str_format.h"
#include "kernels/base/reference.h"

namespace fuseblock::testing {
namespace {

constexpr std::byte kGuard{0xA5};

}  // namespace

Tensor::Tensor(DType dtype, int64_t rows, int64_t columns, Layout layout)
    : dtype_(dtype), rows_(rows), columns_(columns), layout_(layout) {
  const int64_t elements = rows == 0 ? 0 : (rows - 1) * stride() + columns;
  bytes_ = static_cast<size_t>((layout.offset + elements) * SizeOf(dtype));
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, bytes_ == 0 ? 1 : bytes_) != 0) throw std::bad_alloc();
  memory_.reset(static_cast<std::byte*>(memory));
  std::memset(memory, static_cast<int>(kGuard), bytes_);
}

double Tensor::At(int64_t row, int64_t column) const {
  const std::byte* data = Data(memory());
  const int64_t index = row * stride() + column;
  if (dtype_ == DType::kI32) return reinterpret_cast<const int32_t*>(data)[index];
  if (dtype_ == DType::kI64) {
    return static_cast<double>(reinterpret_cast<const int64_t*>(data)[index]);
  }
  return ReadDouble(data, dtype_, index);
}

void Tensor::Set(int64_t row, int64_t column, double value) {
  std::byte* data = Data(memory());
  const int64_t index = row * stride() + column;
  if (dtype_ == DType::kI32) {
    reinterpret_cast<int32_t*>(data)[index] = static_cast<int32_t>(value);
  } else if (dtype_ == DType::kI64) {
    reinterpret_cast<int64_t*>(data)[index] = static_cast<int64_t>(value);
  } else {
    WriteDouble(data, dtype_, index, value);
  }
}

uint64_t Tensor::Bits(int64_t row, int64_t column) const {
  uint64_t bits = 0;
  const int size = SizeOf(dtype_);
  std::memcpy(&bits, Data(memory()) + (row * stride() + column) * size, static_cast<size_t>(size));
  return bits;
}

bool Tensor::GuardsIntact() const {
  const int64_t size = SizeOf(dtype_);
  const auto intact = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * size; i < end * size; ++i) {
      if (memory()[i] != kGuard) return false;
    }
    return true;
  };
  if (!intact(0, layout_.offset)) return false;
  for (int64_t row = 0; row + 1 < rows_; ++row) {
    const int64_t end = layout_.offset + row * stride() + columns_;
    if (!intact(end, end + layout_.padding)) return false;
  }
  return true;
}

Tensor Tensor::Gather(const std::vector<int64_t>& indices, Layout layout) const {
  Tensor out(dtype_, static_cast<int64_t>(indices.size()), columns_, layout);
  const int64_t size = SizeOf(dtype_);
  for (size_t i = 0; i < indices.size(); ++i) {
    std::memcpy(out.Data(out.memory()) + static_cast<int64_t>(i) * out.stride() * size,
                Data(memory()) + indices[i] * stride() * size,
                static_cast<size_t>(columns_ * size));
  }
  return out;
}

Tensor Tensor::Copy(Layout layout) const {
  std::vector<int64_t> all(static_cast<size_t>(rows_));
  for (int64_t i = 0; i < rows_; ++i) all[static_cast<size_t>(i)] = i;
  return Gather(all, layout);
}

Tensor Tensor::Cast(DType dtype) const {
  Tensor out(dtype, rows_, columns_);
  for (int64_t row = 0; row < rows_; ++row) {
    for (int64_t column = 0; column < columns_; ++column) {
      out.Set(row, column, At(row, column));
    }
  }
  return out;
}

std::string FirstDifference(const Tensor& a, const Tensor& b) {
  if (a.rows() != b.rows() || a.columns() != b.columns() || a.dtype() != b.dtype()) {
    return absl::StrFormat("[%d, %d] %s and [%d, %d] %s", a.rows(), a.columns(),
                           std::string(Name(a.dtype())), b.rows(), b.columns(),
                           std::string(Name(b.dtype())));
  }
  for (int64_t row = 0; row < a.rows(); ++row) {
    for (int64_t column = 0; column < a.columns(); ++column) {
      if (a.Bits(row, column) == b.Bits(row, column)) continue;
      const double x = a.At(row, column), y = b.At(row, column);
      if (std::isnan(x) && std::isnan(y)) continue;
      return absl::StrFormat("row %d, column %d: 0x%x (%.9g) and 0x%x (%.9g)", row, column,
                             a.Bits(row, column), x, b.Bits(row, column), y);
    }
  }
  return "";
}

}  // namespace fuseblock::testing
