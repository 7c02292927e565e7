#include "server/engine/cuda_lane.h"

#include <utility>

namespace fuseblock {

absl::StatusOr<std::unique_ptr<Lane>> CudaLane::Create(Device device) {
  if (CudaRuntime() == nullptr) return absl::UnavailableError(CudaUnavailableReason());
  std::unique_ptr<CudaLane> lane(new CudaLane(device));
  absl::Status status =
      CudaStatus("making a stream", lane->cuda_->stream_create(device.index, &lane->stream_));
  for (void*& event : lane->events_) {
    if (!status.ok()) return status;
    status = CudaStatus("making an event", lane->cuda_->event_create(device.index, &event));
  }
  if (!status.ok()) return status;
  return std::unique_ptr<Lane>(std::move(lane));
}

// On a lost device these calls fail, and there is nothing left to free.
CudaLane::~CudaLane() {
  for (void* event : events_) {
    if (event != nullptr) cuda_->event_destroy(device_.index, event);
  }
  if (stream_ != nullptr) cuda_->stream_destroy(device_.index, stream_);
}

absl::Status CudaLane::Reserve(const LaneBytes& bytes) {
  const std::pair<Buffer*, size_t> wanted[] = {
      {&inputs_, bytes.inputs}, {&outputs_, bytes.outputs}, {&workspace_, bytes.workspace}};
  std::array<Buffer, 3> larger;
  for (size_t i = 0; i < larger.size(); ++i) {
    if (wanted[i].second <= wanted[i].first->size()) continue;
    absl::StatusOr<Buffer> buffer =
        Buffer::Allocate(MemoryKind::kDevice, wanted[i].second, device_);
    if (!buffer.ok()) return buffer.status();
    larger[i] = *std::move(buffer);
  }
  for (size_t i = 0; i < larger.size(); ++i) {
    if (larger[i].size() > 0) *wanted[i].first = std::move(larger[i]);
  }
  return absl::OkStatus();
}

absl::Status CudaLane::Record(int event) {
  return CudaStatus("recording an event",
                    cuda_->event_record(device_.index, events_[event], stream_));
}

absl::Status CudaLane::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus("copying", cuda_->copy_async(device_.index, to, from, bytes, stream_));
}

absl::Status CudaLane::Enqueue(const LaneBatch& batch) {
  std::array<ConstTensorView, 2> inputs;
  std::array<TensorView, 2> outputs;
  if (absl::Status s = Record(kBegin); !s.ok()) return s;
  size_t at = 0;
  for (size_t i = 0; i < batch.input_count; ++i) {
    if (batch.inputs[i].data == nullptr) continue;
    const size_t bytes = BytesOf(batch.inputs[i]);
    if (at + bytes > inputs_.size()) return absl::InternalError("inputs larger than was reserved");
    inputs[i] = batch.inputs[i];
    inputs[i].device = device_;
    inputs[i].data = inputs_.data() + at;
    if (absl::Status s = Copy(inputs_.data() + at, batch.inputs[i].data, bytes); !s.ok()) return s;
    at += AlignTensor(bytes);
  }
  if (absl::Status s = Record(kCopiedIn); !s.ok()) return s;

  at = 0;
  for (size_t i = 0; i < batch.output_count; ++i) {
    if (batch.outputs[i].data == nullptr) continue;
    const size_t bytes = BytesOf(batch.outputs[i]);
    if (at + bytes > outputs_.size())
      return absl::InternalError("outputs larger than was reserved");
    outputs[i] = batch.outputs[i];
    outputs[i].device = device_;
    outputs[i].data = outputs_.data() + at;
    at += AlignTensor(bytes);
  }
  const size_t needed = batch.block->WorkspaceBytes(batch.rows);
  if (needed > workspace_.size()) return absl::InternalError("workspace larger than was reserved");
  const ExecutionContext context{device_, stream_, {}};
  absl::Status status =
      batch.block->Run(context, absl::MakeConstSpan(inputs.data(), batch.input_count),
                       absl::MakeConstSpan(outputs.data(), batch.output_count),
                       absl::MakeSpan(workspace_.data(), needed));
  if (!status.ok()) return status;
  if (absl::Status s = Record(kComputed); !s.ok()) return s;

  for (size_t i = 0; i < batch.output_count; ++i) {
    if (batch.outputs[i].data == nullptr) continue;
    status = Copy(batch.outputs[i].data, outputs[i].data, BytesOf(batch.outputs[i]));
    if (!status.ok()) return status;
  }
  return Record(kCopiedOut);
}

absl::Duration CudaLane::Between(int begin, int end) const {
  float ms = 0;
  if (cuda_->event_elapsed_ms(events_[begin], events_[end], &ms) != 0) return absl::ZeroDuration();
  return absl::Milliseconds(ms);
}

absl::Status CudaLane::Run(const LaneBatch& batch, LaneTimes* times) {
  absl::Status enqueued = Enqueue(batch);
  // Also after a failure: what was enqueued before it reads and writes the host's staging.
  absl::Status ran =
      CudaStatus("running the batch", cuda_->stream_synchronize(device_.index, stream_));
  // A lost device says so at the synchronisation; the launch before may have met a lesser error.
  if (absl::IsUnavailable(ran)) return ran;
  if (!enqueued.ok()) return enqueued;
  if (!ran.ok()) return ran;
  times->h2d = Between(kBegin, kCopiedIn);
  times->compute = Between(kCopiedIn, kComputed);
  times->d2h = Between(kComputed, kCopiedOut);
  return absl::OkStatus();
}

}  // namespace fuseblock
