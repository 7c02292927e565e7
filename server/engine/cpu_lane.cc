#include "server/engine/cpu_lane.h"

#include <chrono>
#include <memory>

namespace fuseblock {

absl::Status CpuLane::Reserve(const LaneBytes& bytes) {
  if (bytes.workspace <= workspace_.size()) return absl::OkStatus();
  // Kernels ask for 256-byte alignment, host buffers below a huge page have less: room to round up.
  absl::StatusOr<Buffer> larger =
      Buffer::Allocate(MemoryKind::kHost, bytes.workspace + kTensorAlignment);
  if (!larger.ok()) return larger.status();
  workspace_ = *std::move(larger);
  workspace_.MakeResident();
  return absl::OkStatus();
}

absl::Status CpuLane::Run(const LaneBatch& batch, LaneTimes* times) {
  const auto begin = std::chrono::steady_clock::now();
  ExecutionContext context;
  context.parallel_for = team_.parallel_for();
  void* start = workspace_.data();
  size_t room = workspace_.size();
  const size_t needed = batch.block->WorkspaceBytes(batch.rows);
  if (needed > 0 && std::align(kTensorAlignment, needed, start, room) == nullptr) {
    return absl::InternalError("the CPU lane's workspace was not reserved for this batch");
  }
  const absl::Span<std::byte> workspace(static_cast<std::byte*>(start), needed);
  absl::Status status =
      batch.block->Run(context, absl::MakeConstSpan(batch.inputs.data(), batch.input_count),
                       absl::MakeConstSpan(batch.outputs.data(), batch.output_count), workspace);
  times->compute = absl::FromChrono(std::chrono::steady_clock::now() - begin);
  return status;
}

}  // namespace fuseblock
