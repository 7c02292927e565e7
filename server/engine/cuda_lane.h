// A GPU's lane: a stream, events between the phases, and device memory for inputs, outputs and
// workspace. Copies run from and to pinned memory, all on the lane's stream, so that what one lane
// copies overlaps with what another computes. Kernels copy the smallest batches, and tell when.
//
// Batches up to the largest token bucket have memory of their own, whose addresses the captured
// graphs hold (cuda_graphs.h); larger ones are launched directly in memory that grows with the
// largest block.
//
// The lane's thread waits for its own stream only. It waits the way the driver's default schedule
// for the device does: spinning (yielding where there are more contexts than cores), which hands
// over within 1 or 2 us, and only while the GPU works for this lane; an idle lane waits for work
// in the engine, asleep.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "kernels/base/cuda.h"
#include "server/engine/cuda_graphs.h"
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
  size_t device_bytes() const override;
  size_t host_bytes() const override { return on_host_->size(); }
  absl::Status Capture(const LaneBatch& batch, std::shared_ptr<BlockGraphs>* graphs) override;
  GraphCount graphs() const override { return totals_->sum(); }
  void CountGraphsIn(MemoryGauge* gauge) override { totals_->CountIn(gauge); }
  absl::Status Run(const LaneBatch& batch, LaneTimes* times) override;

  // For tests and profilers.
  void* stream() const { return stream_; }

 private:
  explicit CudaLane(Device device) : device_(device), cuda_(CudaRuntime()) {}

  // A batch's tensors on the device.
  struct Placed {
    std::array<ConstTensorView, 2> inputs;
    std::array<TensorView, 2> outputs;
    absl::Span<std::byte> workspace;
  };
  // In the lane's large memory.
  absl::StatusOr<Placed> Place(const LaneBatch& batch) const;
  // In a graph's memory, as a batch of so many rows.
  static absl::StatusOr<Placed> PlaceIn(const Buffer& memory, const LaneBatch& batch, int64_t rows,
                                        Device device);

  // What a graph's launch is given and gives, of the smallest batches: the batch filled up to so
  // many rows in the memory on the host. Nothing when it is too large for that.
  static std::optional<LaneBatch> Carried(const LaneBatch& batch, int64_t rows, const Buffer& host);
  static void PutIn(const LaneBatch& batch, const LaneBatch& carried);
  static void TakeOut(const LaneBatch& carried, const LaneBatch& batch);

  // All of a batch, with the events around its parts; graph: its kernels, or null to launch them.
  absl::Status Enqueue(const LaneBatch& batch, const Placed& placed, void* graph);
  absl::Status EnqueueGraph(const LaneBatch& batch, const LaneBatch* carried, void* graph);
  absl::Status EnqueueCarried(const LaneBatch& carried, const Placed& placed,
                              const GraphMemory& memory);
  absl::Status EnqueueDirectly(const LaneBatch& batch);
  absl::Status CopyIn(const LaneBatch& batch, const Placed& placed);
  absl::Status CopyOut(const LaneBatch& batch, const Placed& placed);
  absl::Status Launch(const LaneBatch& batch, const Placed& placed);
  absl::Status LaunchGraph(void* graph);
  // The launches that the batch takes, as a graph, with its copies if it is carried.
  absl::StatusOr<void*> CaptureLaunches(const LaneBatch& batch, const Placed& placed,
                                        const GraphMemory& memory, size_t* launches);
  int64_t FreeBytes() const;
  absl::Status Synchronize(const char* what);
  absl::Status Record(int event);
  absl::Status Copy(void* to, const void* from, size_t bytes);
  absl::Duration Between(int begin, int end) const;

  enum Event { kBegin, kCopiedIn, kComputed, kCopiedOut, kEvents };

  const Device device_;
  const FuseblockCudaRuntime* const cuda_;
  void* stream_ = nullptr;
  std::array<void*, kEvents> events_{};
  Buffer inputs_, outputs_, workspace_;
  const std::shared_ptr<GraphTotals> totals_ = std::make_shared<GraphTotals>();
  std::shared_ptr<const Buffer> on_host_;  // pinned: inputs of a small batch, outputs, stamps
  std::shared_ptr<GraphMemory> captured_;  // with room for every block; null before Reserve
};

}  // namespace fuseblock
