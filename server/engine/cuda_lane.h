// A GPU's lane: a stream, events between the phases, and device memory for inputs, outputs and
// workspace. Copies run from and to pinned memory, all on the lane's stream, so lanes overlap.
#pragma once

#include <array>
#include <memory>

#include "kernels/base/cuda.h"
#include "server/engine/lane.h"

namespace fuseblock {

class CudaLane final : public Lane {
 public:
  // UNAVAILABLE without a CUDA backend; the device's error when the stream can't be made.
  static absl::StatusOr<std::unique_ptr<Lane>> Create(Device device);
  ~CudaLane() override;

  Device device() const override { return device_; }
  MemoryKind staging() const override { return MemoryKind::kPinned; }
  absl::Status Reserve(const LaneBytes& bytes) override;
  size_t device_bytes() const override {
    return inputs_.size() + outputs_.size() + workspace_.size();
  }
  absl::Status Run(const LaneBatch& batch, LaneTimes* times) override;

 private:
  explicit CudaLane(Device device) : device_(device), cuda_(CudaRuntime()) {}

  absl::Status Enqueue(const LaneBatch& batch);
  absl::Status Record(int event);
  absl::Status Copy(void* to, const void* from, size_t bytes);
  absl::Duration Between(int begin, int end) const;

  enum Event { kBegin, kCopiedIn, kComputed, kCopiedOut, kEvents };

  const Device device_;
  const FuseblockCudaRuntime* const cuda_;
  void* stream_ = nullptr;
  std::array<void*, kEvents> events_{};
  Buffer inputs_, outputs_, workspace_;
};

}  // namespace fuseblock
