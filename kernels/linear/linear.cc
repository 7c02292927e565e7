// Weights made ready, arguments checked, implementations listed.
#include "kernels/linear/linear.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"
#include "kernels/linear/linear_packed.h"

namespace fuseblock {
namespace {

std::string OnlyBf16(const LinearArgs& args) {
  const DType dtype = args.weight->dtype();
  return dtype == DType::kBF16 ? "" : absl::StrCat("takes BF16, not ", std::string(Name(dtype)));
}

std::string CudaLinearUnavailable(std::string* detail) {
  return CudaKernelUnavailable("linear", detail);
}

using LinearImplementation = Implementation<LinearArgs>;

// Where the CPU has tiles, they are far ahead. VDPBF16PS is ahead of two fused multiply-adds on
// AMD's cores, and behind them on Intel's; the bits are the same but for subnormals.
std::array<LinearImplementation, 5> OrderedImplementations() {
  std::array<LinearImplementation, 5> list = {{
      {"amx_bf16", DeviceType::kCpu, LinearAmxBf16Unavailable, OnlyBf16, LinearAmxBf16},
      {"highway", DeviceType::kCpu, LinearHighwayUnavailable, TakesAll<LinearArgs>, LinearHighway},
      {"avx512_bf16", DeviceType::kCpu, LinearAvx512Bf16Unavailable, OnlyBf16, LinearAvx512Bf16},
      {"cublaslt", DeviceType::kCuda, CudaLinearUnavailable, TakesAll<LinearArgs>, LinearCuda},
      {"reference", DeviceType::kCpu, AlwaysAvailable, TakesAll<LinearArgs>, LinearReference},
  }};
  if (LinearAvx512Bf16IsFast()) std::swap(list[1], list[2]);
  return list;
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// One panel of W, read where W[row, col] lies `row * row_step + col * col_step` elements in.
// Elements are moved as bits, and the source may lie at any address.
template <typename Bits>
void PackPanel(const void* source, int64_t row_step, int64_t col_step, int64_t panel,
               const LinearWeight::Packed& packed) {
  const int64_t first = panel * kPanelWidth;
  const int64_t rows = std::min(kPanelWidth, packed.n - first);
  const int64_t elements = PanelElements(packed.dtype, packed.k);
  Bits* out = reinterpret_cast<Bits*>(packed.weight.data());
  std::memset(out + panel * elements, 0, static_cast<size_t>(elements) * sizeof(Bits));
  for (int64_t row = first; row < first + rows; ++row) {
    const std::byte* in = static_cast<const std::byte*>(source) + row * row_step * sizeof(Bits);
    for (int64_t col = 0; col < packed.k; ++col) {
      std::memcpy(out + PanelOffset(packed.dtype, packed.k, row, col),
                  in + col * col_step * sizeof(Bits), sizeof(Bits));
    }
  }
}

absl::Status PreparePanels(const void* source, int64_t row_step, int64_t col_step,
                           const ParallelFor& parallel_for, LinearWeight::Packed& packed) {
  const int64_t panels = PanelCount(packed.n);
  const size_t bytes = static_cast<size_t>(panels) *
                       static_cast<size_t>(PanelElements(packed.dtype, packed.k)) *
                       static_cast<size_t>(SizeOf(packed.dtype));
  absl::StatusOr<Buffer> buffer = Buffer::Allocate(MemoryKind::kHost, bytes);
  if (!buffer.ok()) return buffer.status();
  packed.weight = *std::move(buffer);
  if (bytes == 0) return absl::OkStatus();
  parallel_for(panels, [&](int64_t panel) {
    if (SizeOf(packed.dtype) == 4) {
      PackPanel<uint32_t>(source, row_step, col_step, panel, packed);
    } else {
      PackPanel<uint16_t>(source, row_step, col_step, panel, packed);
    }
  });
  return absl::OkStatus();
}

// The bias as FP32, with zeros up to whole panels, in host memory.
absl::Status PrepareBias(const ConstTensorView& bias, LinearWeight::Packed& packed) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckVector("bias", bias, packed.n));
  if (bias.dtype != packed.dtype && bias.dtype != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("bias: expected ", std::string(Name(packed.dtype)), " or FP32, got ",
                     std::string(Name(bias.dtype))));
  }
  const size_t count = static_cast<size_t>(PanelCount(packed.n) * kPanelWidth);
  absl::StatusOr<Buffer> buffer = Buffer::Allocate(MemoryKind::kHost, count * sizeof(float));
  if (!buffer.ok()) return buffer.status();
  packed.bias = *std::move(buffer);
  float* out = reinterpret_cast<float*>(packed.bias.data());
  std::fill(out, out + count, 0.0f);
  VisitFloat(bias.dtype, [&](auto value) {
    for (int64_t i = 0; i < packed.n; ++i) {
      std::memcpy(&value, static_cast<const std::byte*>(bias.data) + i * sizeof(value),
                  sizeof(value));
      out[i] = ToFloat(value);
    }
  });
  return absl::OkStatus();
}

// [K, N] as [N, K], dense.
absl::StatusOr<Buffer> Transposed(const void* source, int64_t stride,
                                  const LinearWeight::Packed& packed) {
  const size_t size = static_cast<size_t>(SizeOf(packed.dtype));
  absl::StatusOr<Buffer> out = Buffer::Allocate(
      MemoryKind::kHost, static_cast<size_t>(packed.n) * static_cast<size_t>(packed.k) * size);
  if (!out.ok()) return out.status();
  for (int64_t n = 0; n < packed.n; ++n) {
    for (int64_t k = 0; k < packed.k; ++k) {
      std::memcpy(
          out->data() + static_cast<size_t>(n * packed.k + k) * size,
          static_cast<const std::byte*>(source) + static_cast<size_t>(k * stride + n) * size, size);
    }
  }
  return out;
}

}  // namespace

absl::Span<const LinearImplementation> LinearImplementations() {
  static const std::array<LinearImplementation, 5> list = OrderedImplementations();
  return list;
}

LinearWeight::LinearWeight() = default;
LinearWeight::LinearWeight(std::unique_ptr<Packed> packed) : packed_(std::move(packed)) {}
LinearWeight::LinearWeight(LinearWeight&&) noexcept = default;
LinearWeight& LinearWeight::operator=(LinearWeight&&) noexcept = default;
LinearWeight::~LinearWeight() = default;

absl::StatusOr<LinearWeight> LinearWeight::Prepare(Device device, const ConstTensorView& weight,
                                                   const std::optional<ConstTensorView>& bias,
                                                   WeightLayout layout,
                                                   const ParallelFor& parallel_for, int segments) {
  if (weight.rank != 2 || !IsFloat(weight.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight: expected rank 2 of FP32, FP16 or BF16, got ", Describe(weight)));
  }
  if (weight.device.type != DeviceType::kCpu) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight: expected host memory, got ", DeviceName(weight.device)));
  }
  absl::StatusOr<ConstRows> rows = AsRows("weight", weight);
  if (!rows.ok()) return rows.status();
  const bool out_in = layout == WeightLayout::kOutIn;
  auto packed = std::make_unique<Packed>();
  packed->device = device;
  packed->dtype = weight.dtype;
  packed->n = out_in ? rows->rows : rows->cols;
  packed->k = out_in ? rows->cols : rows->rows;
  packed->segments = segments;
  if (segments < 1 || packed->k % segments != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("segments: expected a divisor of ", packed->k, " columns, got ", segments));
  }
  if (bias.has_value()) {
    FUSEBLOCK_RETURN_IF_ERROR(PrepareBias(*bias, *packed));
  }
  absl::Status status;
  if (device.type == DeviceType::kCpu) {
    status = PreparePanels(rows->data, out_in ? rows->stride : 1, out_in ? 1 : rows->stride,
                           parallel_for, *packed);
  } else if (out_in) {
    status = PrepareLinearCuda(rows->data, rows->stride, *packed);
  } else {
    absl::StatusOr<Buffer> dense = Transposed(rows->data, rows->stride, *packed);
    if (!dense.ok()) return dense.status();
    status = PrepareLinearCuda(dense->data(), packed->k, *packed);
  }
  if (!status.ok()) return status;
  return LinearWeight(std::move(packed));
}

int64_t LinearWeight::n() const { return packed_->n; }
int64_t LinearWeight::k() const { return packed_->k; }
DType LinearWeight::dtype() const { return packed_->dtype; }
Device LinearWeight::device() const { return packed_->device; }
size_t LinearWeight::bytes() const { return packed_->weight.size() + packed_->bias.size(); }

std::string LinearWeight::description() const {
  if (packed_->device.type == DeviceType::kCuda) {
    return packed_->algorithm;
  }
  LinearArgs args{{}, this, {}, packed_->dtype};
  for (const LinearImplementation& item : LinearImplementations()) {
    std::string detail;
    if (item.device != DeviceType::kCpu || !item.unavailable(&detail).empty()) continue;
    if (!item.why_not(args).empty()) continue;
    return absl::StrCat("panels ", kPanelWidth, " x ", packed_->k, ", ",
                        detail.empty() ? item.name : detail);
  }
  return "panels";
}

absl::StatusOr<LinearArgs> CheckLinear(const ConstTensorView& x, const LinearWeight& weight,
                                       const TensorView& y) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("x", x, weight.dtype()));
  if (y.dtype != DType::kF32) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDType("y", y, weight.dtype()));
  }
  if (x.device != weight.device() || y.device != weight.device()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected x and y on ", DeviceName(weight.device()), " where the weight is, got ",
        DeviceName(x.device), " and ", DeviceName(y.device)));
  }
  absl::StatusOr<ConstRows> x_rows = AsRows("x", x);
  if (!x_rows.ok()) return x_rows.status();
  absl::StatusOr<Rows> y_rows = AsRows("y", y);
  if (!y_rows.ok()) return y_rows.status();
  if (x_rows->cols != weight.k()) {
    return absl::InvalidArgumentError(
        absl::StrCat("x: expected ", weight.k(), " columns, got ", Describe(x)));
  }
  if (y_rows->cols != weight.n()) {
    return absl::InvalidArgumentError(
        absl::StrCat("y: expected ", weight.n(), " columns, got ", Describe(y)));
  }
  if (x.rank != y.rank || x.dims().first(x.rank - 1) != y.dims().first(y.rank - 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("y: expected the leading axes of x ", Describe(x), ", got ", Describe(y)));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", y, "x", x));
  if (x.data == y.data && x.elements() > 0 && y.elements() > 0) {
    return absl::InvalidArgumentError("y: must not be x itself: a product is not in place");
  }
  return LinearArgs{*x_rows, &weight, *y_rows, y.dtype};
}

absl::Status Linear(const ExecutionContext& context, const ConstTensorView& x,
                    const LinearWeight& weight, const TensorView& y) {
  absl::StatusOr<LinearArgs> args = CheckLinear(x, weight, y);
  if (!args.ok()) return args.status();
  if (args->y.rows == 0 || args->y.cols == 0) return absl::OkStatus();
  return RunFirst("linear", LinearImplementations(), context, *args);
}

}  // namespace fuseblock
