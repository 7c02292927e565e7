#include "kernels/base/tensor_view.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fuseblock {
namespace {

template <typename Void, typename View>
absl::StatusOr<BasicRows<Void>> Collapse(const char* name, const View& view) {
  if (view.rank == 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected rank >= 1, got a scalar"));
  }
  const int last = view.rank - 1;
  BasicRows<Void> rows{view.data, view.rows(), view.shape[last], view.shape[last]};
  if (rows.cols > 1 && view.stride[last] != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": axis ", last, " must be contiguous (stride 1), got stride ", view.stride[last]));
  }
  bool found = false;
  int64_t expected = 0;  // the stride that the next outer axis must have to continue the rows
  for (int axis = last - 1; axis >= 0; --axis) {
    if (view.shape[axis] == 1 || rows.rows == 0) continue;
    if (found && view.stride[axis] != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": axis ", axis, " must have stride ", expected,
                       " to collapse into rows, got stride ", view.stride[axis]));
    }
    if (!found && view.stride[axis] < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": axis ", axis, " must have a stride >= 0, got stride ", view.stride[axis]));
    }
    if (!found) rows.stride = view.stride[axis];
    found = true;
    expected = view.stride[axis] * view.shape[axis];
  }
  if (!std::is_const_v<Void> && rows.rows > 1 && rows.stride < rows.cols) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": rows must not overlap, expected stride >= ", rows.cols, ", got ", rows.stride));
  }
  return rows;
}

struct Extent {  // the bytes a view touches
  uintptr_t begin, end;
};

template <typename View>
Extent ExtentOf(const View& view) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(view.data);
  if (view.elements() == 0) return {begin, begin};
  int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) last += (view.shape[i] - 1) * view.stride[i];
  return {begin, begin + static_cast<uintptr_t>(last + 1) * SizeOf(view.dtype)};
}

// Whether two views that interleave row by row share no byte: both have rows of one byte stride,
// and their columns are apart within it (the two halves of a packed tensor).
template <typename View>
bool ColumnsApart(const TensorView& out, const View& in) {
  const auto a = AsRows("", out);
  const auto b = AsRows("", in);
  if (!a.ok() || !b.ok()) return false;
  const int64_t stride = a->stride * SizeOf(out.dtype);
  if (stride <= 0 || stride != b->stride * SizeOf(in.dtype)) return false;
  const int64_t distance = static_cast<int64_t>(reinterpret_cast<uintptr_t>(in.data) -
                                                reinterpret_cast<uintptr_t>(out.data));
  const int64_t offset = ((distance % stride) + stride) % stride;
  return offset >= a->cols * SizeOf(out.dtype) && offset + b->cols * SizeOf(in.dtype) <= stride;
}

}  // namespace

std::string DeviceName(Device device) {
  return device.type == DeviceType::kCpu ? "cpu" : absl::StrCat("cuda:", device.index);
}

absl::StatusOr<Rows> AsRows(const char* name, const TensorView& view) {
  return Collapse<void>(name, view);
}

absl::StatusOr<ConstRows> AsRows(const char* name, const ConstTensorView& view) {
  return Collapse<const void>(name, view);
}

std::string Describe(const ConstTensorView& view) {
  return absl::StrCat("[", absl::StrJoin(view.dims(), ", "), "] ", std::string(Name(view.dtype)));
}

absl::Status CheckSameShape(const char* a_name, const ConstTensorView& a, const char* b_name,
                            const ConstTensorView& b) {
  if (a.dims() == b.dims()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(b_name, ": expected the shape of ", a_name, " [",
                                                 absl::StrJoin(a.dims(), ", "), "], got [",
                                                 absl::StrJoin(b.dims(), ", "), "]"));
}

absl::Status CheckDType(const char* name, const ConstTensorView& view, DType expected) {
  if (view.dtype == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected ", std::string(Name(expected)),
                                                 ", got ", std::string(Name(view.dtype))));
}

absl::Status CheckFloat(const char* name, const ConstTensorView& view) {
  if (Traits(view.dtype).epsilon > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected FP32, FP16 or BF16, got ", std::string(Name(view.dtype))));
}

absl::Status CheckDTypeOrF32(const char* name, const ConstTensorView& view, DType expected) {
  if (view.dtype == expected || view.dtype == DType::kF32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected ", std::string(Name(expected)),
                                                 expected == DType::kF32 ? "" : " or FP32",
                                                 ", got ", std::string(Name(view.dtype))));
}

absl::Status CheckDevice(const char* name, const ConstTensorView& view, Device expected) {
  if (view.device == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected on ", DeviceName(expected),
                                                 ", got ", DeviceName(view.device)));
}

absl::Status CheckVector(const char* name, const ConstTensorView& view, int64_t expected) {
  if (view.rank == 1 && view.shape[0] == expected && (expected <= 1 || view.stride[0] == 1)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected a contiguous [", expected, "], got ", Describe(view)));
}

absl::Status CheckApart(const char* out_name, const TensorView& out, const char* in_name,
                        const ConstTensorView& in) {
  const Extent a = ExtentOf(out);
  const Extent b = ExtentOf(in);
  const bool empty = a.begin == a.end || b.begin == b.end;
  if (empty || a.begin >= b.end || b.begin >= a.end) return absl::OkStatus();
  if (ColumnsApart(out, in)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(out_name, ": must not overlap ", in_name, ", but they share memory"));
}

absl::Status CheckNoPartialOverlap(const char* out_name, const TensorView& out, const char* in_name,
                                   const ConstTensorView& in) {
  if (out.data == in.data && out.dtype == in.dtype && out.dims() == in.dims() &&
      out.stride == in.stride) {
    return absl::OkStatus();
  }
  if (CheckApart(out_name, out, in_name, in).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(out_name, ": must be ", in_name,
                                                 " itself or not touch it; they overlap in part"));
}

}  // namespace fuseblock
