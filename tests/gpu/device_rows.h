// Rows of a tensor on the first GPU, for tests: made from host tensors, read back as host tensors.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"
#include "tests/support/numerics_tensor.h"
#include "tests/support/numerics_values.h"

namespace fuseblock::testing {

inline constexpr Device kGpu{DeviceType::kCuda, 0};

// The backend, or a failed test that says why there is none.
inline const FuseblockCudaRuntime& Gpu() {
  const FuseblockCudaRuntime* runtime = CudaRuntime();
  if (runtime == nullptr) {
    ADD_FAILURE() << "these tests need a GPU: " << CudaUnavailableReason();
    std::exit(1);
  }
  return *runtime;
}

// A stream of the GPU; waits for it at its end.
class GpuStream {
 public:
  GpuStream() { EXPECT_EQ(Gpu().stream_create(0, &stream_), 0); }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  ~GpuStream() {
    Wait();
    Gpu().stream_destroy(0, stream_);
  }
  void Wait() const {
    const absl::Status status = CudaStatus("stream", Gpu().stream_synchronize(0, stream_));
    ASSERT_TRUE(status.ok()) << status;
  }
  ExecutionContext context() const { return {kGpu, stream_, {}}; }
  void* get() const { return stream_; }

 private:
  void* stream_ = nullptr;
};

inline Buffer GpuBuffer(size_t bytes) {
  Gpu();
  absl::StatusOr<Buffer> buffer = Buffer::Allocate(MemoryKind::kDevice, bytes, kGpu);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return buffer.ok() ? *std::move(buffer) : Buffer();
}

// The whole allocation of a host tensor, with its guards, on the GPU.
class DeviceRows {
 public:
  explicit DeviceRows(Tensor host)
      : host_(std::move(host)), buffer_(GpuBuffer(host_.memory_bytes())) {
    Copy(buffer_.data(), host_.memory());
  }
  DeviceRows(DType dtype, int64_t rows, int64_t columns, Layout layout = {})
      : DeviceRows(Tensor(dtype, rows, columns, layout)) {}

  // Rows [first, first + count).
  TensorView view(int64_t first, int64_t count) const {
    TensorView view(host_.Data(buffer_.data()) + first * host_.stride() * SizeOf(host_.dtype()),
                    host_.dtype(), {count, host_.columns()}, kGpu);
    view.stride[0] = host_.stride();
    return view;
  }
  TensorView view() const { return view(0, host_.rows()); }
  // A one-row tensor as a vector.
  TensorView vector() const {
    return TensorView(host_.Data(buffer_.data()), host_.dtype(), {host_.columns()}, kGpu);
  }

  // What the device holds now. Precondition: the work on it has been waited for.
  const Tensor& Read() {
    Copy(host_.memory(), buffer_.data());
    EXPECT_TRUE(host_.GuardsIntact()) << "a write outside the rows";
    return host_;
  }

 private:
  void Copy(void* to, const void* from) const {
    if (host_.memory_bytes() == 0) return;
    EXPECT_EQ(Gpu().copy_async(0, to, from, host_.memory_bytes(), nullptr), 0);
    EXPECT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
  }

  Tensor host_;
  Buffer buffer_;
};

// About N(0, scale^2), of that seed.
inline Tensor Normals(DType dtype, int64_t rows, int64_t columns, double scale, uint64_t seed) {
  Tensor tensor(dtype, rows, columns);
  Random random(seed);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      // Three uniforms: near enough, and large weights are made quickly.
      const double sum = random.Uniform() + random.Uniform() + random.Uniform() - 1.5;
      tensor.Set(row, column, 2 * sum * scale);
    }
  }
  return tensor;
}

inline ConstTensorView HostView(const Tensor& tensor) {
  return TensorView(tensor.Data(tensor.memory()), tensor.dtype(),
                    {tensor.rows(), tensor.columns()});
}
inline ConstTensorView HostVector(const Tensor& tensor) {
  return TensorView(tensor.Data(tensor.memory()), tensor.dtype(), {tensor.columns()});
}

}  // namespace fuseblock::testing
