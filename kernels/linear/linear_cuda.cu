// The plan of a product on CUDA and its run: cuBLASLt with pinned algorithms where the shape allows
// it, plain FMA tiles elsewhere. Which of the two depends on (N, K) and the machine's libraries
// alone: rows that lie badly are copied, never computed in another way.
#include <algorithm>
#include <cstdio>

#include "kernels/base/cuda_launch.cuh"
#include "kernels/base/cuda_types.cuh"
#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/linear_probe_cuda.h"
#include "kernels/linear/linear_tiles_cuda.h"

namespace fuseblock {
namespace {

constexpr int64_t kRowsPerCall = 65536;  // of one product: within every library's grid limits
constexpr int64_t kRowsStaged = 1024;    // bounds the scratch of rows that lie badly

struct Plan {
  int device = 0;
  int dtype = 0;
  int64_t n = 0, k = 0;
  int segments = 1;
  const void* weight = nullptr;
  const float* bias = nullptr;
  const PinnedProducts* pinned = nullptr;  // null: plain tiles
};

cudaError_t CopyRows(const FuseblockCudaRows& to, const FuseblockCudaRows& from,
                     cudaStream_t stream) {
  const auto size = static_cast<size_t>(ElementBytes(from));
  return cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride) * size, from.data,
                           static_cast<size_t>(from.stride) * size,
                           static_cast<size_t>(from.cols) * size, static_cast<size_t>(from.rows),
                           cudaMemcpyDeviceToDevice, stream);
}

// y = (add +) x * W^T; add.data null: none.
cudaError_t RunPinned(const Plan& plan, const FuseblockCudaRows& x, const FuseblockCudaRows& y,
                      cudaStream_t stream, const FuseblockCudaRows& add = {}) {
  const PinnedProduct& product = y.dtype == plan.dtype ? plan.pinned->same : plan.pinned->wide;
  for (int64_t first = 0; first < x.rows; first += kRowsPerCall) {
    const int64_t count = std::min(kRowsPerCall, x.rows - first);
    ProductOperands operands{plan.weight, RowsFrom(x, first, count).data, x.stride,
                             count,       RowsFrom(y, first, count).data, y.stride};
    if (add.data != nullptr) {
      operands.add = RowsFrom(add, first, count).data;
      operands.add_stride = add.stride;
    }
    const cudaError_t error = Multiply(*plan.pinned, product, operands, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Whether FP32 sums are more than y, after a conversion: a sum of segments grows in FP32.
bool Finishes(const Plan& plan, const FuseblockCudaRows& y, LinearEpilogue epilogue) {
  return plan.bias != nullptr || epilogue != LinearEpilogue::kNone ||
         (plan.segments > 1 && y.dtype != static_cast<int>(DType::kF32));
}

// Through scratch of the stream's own: rows that do not lie on 16-byte boundaries, and sums that
// are finished before they are rounded.
cudaError_t RunStaged(const Plan& plan, const FuseblockCudaRows& x, const FuseblockCudaRows& y,
                      LinearEpilogue epilogue, cudaStream_t stream) {
  const int float_dtype = static_cast<int>(DType::kF32);
  const int64_t rows = std::min(kRowsStaged, x.rows);
  const bool finishes = Finishes(plan, y, epilogue);
  const bool copies = !Aligned16(x);
  FuseblockCudaRows x_copy{nullptr, x.dtype, rows, x.cols, x.cols};
  FuseblockCudaRows y_copy{nullptr, finishes ? float_dtype : y.dtype, rows, y.cols, y.cols};
  // 4 bytes an element are enough for any dtype; y's part starts on a 16-byte boundary.
  const int64_t x_bytes = copies ? CeilDiv(rows * x.cols * 4, 256) * 256 : 0;
  const int64_t y_bytes = rows * y.cols * 4;
  void* scratch = nullptr;
  cudaError_t error = cudaMallocAsync(&scratch, static_cast<size_t>(x_bytes + y_bytes), stream);
  if (error != cudaSuccess) return error;
  x_copy.data = scratch;
  y_copy.data = static_cast<std::byte*>(scratch) + x_bytes;
  for (int64_t first = 0; first < x.rows && error == cudaSuccess; first += rows) {
    const int64_t count = std::min(rows, x.rows - first);
    x_copy.rows = y_copy.rows = count;
    const FuseblockCudaRows x_part = RowsFrom(x, first, count);
    const FuseblockCudaRows y_part = RowsFrom(y, first, count);
    if (copies) error = CopyRows(x_copy, x_part, stream);
    if (error == cudaSuccess) error = RunPinned(plan, copies ? x_copy : x_part, y_copy, stream);
    if (error != cudaSuccess) break;
    error = finishes ? LaunchEpilogue(y_copy, plan.bias, y_part, epilogue, stream)
                     : CopyRows(y_part, y_copy, stream);
  }
  const cudaError_t freed = cudaFreeAsync(scratch, stream);
  return error == cudaSuccess ? freed : error;
}

cudaError_t Run(const Plan& plan, const FuseblockCudaRows& x, const FuseblockCudaRows& y,
                LinearEpilogue epilogue, cudaStream_t stream) {
  if (plan.pinned == nullptr) {
    return LaunchLinearTiles(x, plan.weight, plan.bias, y, epilogue, stream);
  }
  if (Aligned16(x) && Aligned16(y)) {
    const bool finishes = Finishes(plan, y, epilogue);
    if (!finishes) return RunPinned(plan, x, y, stream);
    if (y.dtype == static_cast<int>(DType::kF32)) {
      const cudaError_t error = RunPinned(plan, x, y, stream);
      return error == cudaSuccess ? LaunchEpilogue(y, plan.bias, y, epilogue, stream) : error;
    }
  }
  return RunStaged(plan, x, y, epilogue, stream);
}

}  // namespace

int MakeLinearPlan(int device, int dtype, int64_t n, int64_t k, int segments, const void* weight,
                   const float* bias, void** plan, char* algorithm) {
  *plan = nullptr;
  cudaError_t error = cudaSetDevice(device);
  auto made = new Plan{device, dtype, n, k, segments, weight, bias, nullptr};
  if (error == cudaSuccess && reinterpret_cast<uintptr_t>(weight) % 16 == 0) {
    error = PinProducts(device, dtype, n, k, segments, &made->pinned);
  }
  if (error != cudaSuccess) {
    delete made;
    cudaGetLastError();
    return error;
  }
  std::snprintf(algorithm, 64, "%s",
                made->pinned == nullptr ? "FP32 FMA tiles 64 x 64" : made->pinned->name);
  *plan = made;
  return cudaSuccess;
}

void FreeLinearPlan(void* plan) { delete static_cast<Plan*>(plan); }

int RunLinearOnto(const void* plan_pointer, const FuseblockCudaRows& x,
                  const FuseblockCudaRows& add, const FuseblockCudaRows& y, void* stream) {
  const Plan& plan = *static_cast<const Plan*>(plan_pointer);
  if (plan.pinned == nullptr || plan.bias != nullptr || plan.segments > 1) {
    return cudaErrorNotSupported;
  }
  const cudaError_t error = RunPinned(plan, x, y, static_cast<cudaStream_t>(stream), add);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

int RunLinear(const void* plan_pointer, const FuseblockCudaRows* x, const FuseblockCudaRows* y,
              int epilogue, void* stream_pointer) {
  const Plan& plan = *static_cast<const Plan*>(plan_pointer);
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  if (x->dtype != plan.dtype || x->cols != plan.k || y->cols != plan.n || x->rows != y->rows) {
    return cudaErrorInvalidValue;
  }
  if (x->rows == 0 || plan.n == 0) return cudaSuccess;
  // A single row's stride means nothing; the library wants one of at least a row.
  FuseblockCudaRows x_rows = *x;
  FuseblockCudaRows y_rows = *y;
  if (x_rows.rows == 1) {
    x_rows.stride = plan.k;
    y_rows.stride = plan.n;
  }
  cudaError_t error = cudaSetDevice(plan.device);
  if (error == cudaSuccess)
    error = Run(plan, x_rows, y_rows, static_cast<LinearEpilogue>(epilogue), stream);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace fuseblock
