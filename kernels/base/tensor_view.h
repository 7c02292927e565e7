// A tensor that somebody else owns: where it lies, how it is laid out, on which device.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/dtype.h"

namespace fuseblock {

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

std::string DeviceName(Device device);  // "cpu", "cuda:0"

inline constexpr int kMaxRank = 8;

// Strides are in elements. Kernels need the last axis contiguous (stride 1) and take any stride on
// the other axes that they can collapse to rows; a stride they cannot take is an error.
template <typename Void>
struct BasicTensorView {
  Void* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};

  BasicTensorView() = default;
  // A dense row-major tensor. Precondition: dims.size() <= kMaxRank.
  BasicTensorView(Void* data_in, DType dtype_in, absl::Span<const int64_t> dims,
                  Device device_in = {})
      : data(data_in), dtype(dtype_in), device(device_in), rank(static_cast<int>(dims.size())) {
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      shape[i] = dims[i];
      stride[i] = step;
      step *= dims[i];
    }
  }
  BasicTensorView(Void* data_in, DType dtype_in, std::initializer_list<int64_t> dims,
                  Device device_in = {})
      : BasicTensorView(data_in, dtype_in, absl::MakeConstSpan(dims.begin(), dims.size()),
                        device_in) {}

  absl::Span<const int64_t> dims() const { return {shape.data(), static_cast<size_t>(rank)}; }
  int64_t cols() const { return rank == 0 ? 1 : shape[rank - 1]; }
  int64_t elements() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }
  int64_t rows() const {
    int64_t count = 1;
    for (int i = 0; i + 1 < rank; ++i) count *= shape[i];
    return count;
  }
};

struct TensorView : BasicTensorView<void> {
  using BasicTensorView::BasicTensorView;
};

struct ConstTensorView : BasicTensorView<const void> {
  using BasicTensorView::BasicTensorView;
  ConstTensorView(const TensorView& view) {  // NOLINT(google-explicit-constructor): reading is safe
    data = view.data;
    dtype = view.dtype;
    device = view.device;
    rank = view.rank;
    shape = view.shape;
    stride = view.stride;
  }
};

// What row kernels run on: `rows` rows of `cols` contiguous elements, `stride` elements apart.
template <typename Void>
struct BasicRows {
  Void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
};
using Rows = BasicRows<void>;
using ConstRows = BasicRows<const void>;

// The view as rows of its last axis. INVALID_ARGUMENT, naming `name` and the axis, when the rank is
// 0, the last axis is not contiguous, or the leading axes do not collapse to one stride >= 0. Rows
// of a writable view must not overlap; a read-only one may repeat a row (stride 0).
absl::StatusOr<Rows> AsRows(const char* name, const TensorView& view);
absl::StatusOr<ConstRows> AsRows(const char* name, const ConstTensorView& view);

// "[4, 576] BF16", for messages.
std::string Describe(const ConstTensorView& view);

// OK when a and b have the same shape; else INVALID_ARGUMENT naming both with both shapes.
absl::Status CheckSameShape(const char* a_name, const ConstTensorView& a, const char* b_name,
                            const ConstTensorView& b);
// OK when the view has that dtype; else INVALID_ARGUMENT with expected and given.
absl::Status CheckDType(const char* name, const ConstTensorView& view, DType expected);
// OK when the view is FP32, FP16 or BF16; else INVALID_ARGUMENT.
absl::Status CheckFloat(const char* name, const ConstTensorView& view);
// OK when the view has that dtype or FP32; else INVALID_ARGUMENT with expected and given.
absl::Status CheckDTypeOrF32(const char* name, const ConstTensorView& view, DType expected);
// OK when the view lies on that device; else INVALID_ARGUMENT with expected and given.
absl::Status CheckDevice(const char* name, const ConstTensorView& view, Device expected);
// OK when the view is a contiguous vector [expected]; else INVALID_ARGUMENT.
absl::Status CheckVector(const char* name, const ConstTensorView& view, int64_t expected);
// OK when the two share no element; else INVALID_ARGUMENT.
absl::Status CheckApart(const char* out_name, const TensorView& out, const char* in_name,
                        const ConstTensorView& in);
// OK when out is exactly `in` or shares no element with it (two column ranges of one wider tensor
// share none); INVALID_ARGUMENT on a partial overlap.
absl::Status CheckNoPartialOverlap(const char* out_name, const TensorView& out, const char* in_name,
                                   const ConstTensorView& in);

}  // namespace fuseblock
