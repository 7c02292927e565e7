#include "tests/support/numerics_place.h"

#include <atomic>
#include <map>
#include <thread>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"

namespace fuseblock::testing {
namespace {

TensorView ViewOf(const Placed& placed, std::byte* base, Device device) {
  if (placed.tensor == nullptr) return TensorView();
  const Tensor& tensor = *placed.tensor;
  TensorView view(tensor.Data(base), tensor.dtype(), {tensor.rows(), tensor.columns()}, device);
  view.stride[0] = tensor.stride();
  if (placed.shape == Shape::kVector) {
    view =
        TensorView(tensor.Data(base), tensor.dtype(), {tensor.rows() * tensor.columns()}, device);
  }
  return view;
}

// The device's copies of some tensors, and the stream that fills them.
class DeviceCopies {
 public:
  explicit DeviceCopies(Device device) : device_(device) {}
  ~DeviceCopies() {
    if (stream_ != nullptr) CudaRuntime()->stream_destroy(device_.index, stream_);
  }

  absl::Status Open() {
    if (CudaRuntime() == nullptr) return absl::UnavailableError(CudaUnavailableReason());
    return CudaStatus("stream_create", CudaRuntime()->stream_create(device_.index, &stream_));
  }

  absl::StatusOr<std::byte*> Upload(const Tensor* tensor) {
    Buffer& buffer = buffers_[tensor];
    if (buffer.data() == nullptr && tensor->memory_bytes() > 0) {
      FUSEBLOCK_ASSIGN_OR_RETURN(
          buffer, Buffer::Allocate(MemoryKind::kDevice, tensor->memory_bytes(), device_));
      FUSEBLOCK_RETURN_IF_ERROR(Copy(buffer.data(), tensor->memory(), tensor->memory_bytes()));
    }
    return buffer.data();
  }

  absl::Status Download() {
    FUSEBLOCK_RETURN_IF_ERROR(Synchronize());
    for (const auto& [tensor, buffer] : buffers_) {
      FUSEBLOCK_RETURN_IF_ERROR(Copy(tensor->memory(), buffer.data(), tensor->memory_bytes()));
    }
    return Synchronize();
  }

  void* stream() const { return stream_; }

 private:
  absl::Status Copy(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    return CudaStatus("copy_async",
                      CudaRuntime()->copy_async(device_.index, to, from, bytes, stream_));
  }
  absl::Status Synchronize() {
    return CudaStatus("stream_synchronize",
                      CudaRuntime()->stream_synchronize(device_.index, stream_));
  }

  Device device_;
  void* stream_ = nullptr;
  std::map<const Tensor*, Buffer> buffers_;
};

void RunOnThreads(void*, int64_t tasks, absl::FunctionRef<void(int64_t)> task) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < tasks; i = next++) task(i);
  };
  std::thread second(work), third(work);
  work();
  second.join();
  third.join();
}

}  // namespace

absl::Status RunPlaced(DeviceType device_type, const std::vector<Placed>& operands,
                       const ParallelFor& parallel_for, PlacedRun run) {
  ExecutionContext context;
  context.device = {device_type, 0};
  context.parallel_for = parallel_for;
  std::vector<TensorView> views;
  if (device_type == DeviceType::kCpu) {
    for (const Placed& operand : operands) {
      views.push_back(ViewOf(
          operand, operand.tensor == nullptr ? nullptr : operand.tensor->memory(), context.device));
    }
    return run(context, views);
  }
  DeviceCopies copies(context.device);
  FUSEBLOCK_RETURN_IF_ERROR(copies.Open());
  context.stream = copies.stream();
  for (const Placed& operand : operands) {
    std::byte* base = nullptr;
    if (operand.tensor != nullptr) {
      FUSEBLOCK_ASSIGN_OR_RETURN(base, copies.Upload(operand.tensor));
    }
    views.push_back(ViewOf(operand, base, context.device));
  }
  FUSEBLOCK_RETURN_IF_ERROR(run(context, views));
  return copies.Download();
}

ParallelFor ThreeThreads() { return {3, nullptr, RunOnThreads}; }

}  // namespace fuseblock::testing
