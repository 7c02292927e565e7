#include "server/engine/cuda_lane.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace fuseblock {
namespace {

// Of a graph's inputs, and of its outputs, that the host puts and takes itself: what one core
// copies in about the time of one call to the driver.
constexpr size_t kCarriedBytes = size_t{64} << 10;

// What a carried batch's copies tell of their begin and end, behind its outputs.
struct Stamps {
  uint64_t in[2], out[2];  // ns
};
// The device's clock steps by up to a microsecond.
absl::Duration Span(uint64_t begin, uint64_t end) {
  return absl::Nanoseconds(end > begin ? static_cast<int64_t>(end - begin) : 0);
}
Stamps& StampsIn(const Buffer& host) {
  return *reinterpret_cast<Stamps*>(host.data() + 2 * kCarriedBytes);
}

// A run of memory that tensors are laid into, each from a 256-byte boundary on.
class Room {
 public:
  explicit Room(const Buffer& memory) : Room(memory.data(), memory.size()) {}
  Room(std::byte* begin, size_t bytes) : at_(begin), left_(bytes) {}

  std::byte* Take(size_t bytes) {
    std::byte* begin = at_;
    const size_t taken = AlignTensor(bytes);
    enough_ = enough_ && bytes <= left_;
    at_ += std::min(taken, left_);
    left_ -= std::min(taken, left_);
    return begin;
  }
  // The batch's view here, of so many rows; one that was left out stays so.
  template <typename View>
  View Take(View view, int64_t rows, Device device) {
    if (view.data == nullptr) return view;
    view.shape[0] = rows;
    view.device = device;
    view.data = Take(BytesOf(view));
    return view;
  }
  bool enough() const { return enough_; }

 private:
  std::byte* at_;
  size_t left_;
  bool enough_ = true;
};

absl::Status LargerThanReserved() {
  return absl::InternalError("a batch larger than the lane's memory was reserved for");
}

}  // namespace

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
  auto on_host = Buffer::Allocate(MemoryKind::kPinned, 2 * kCarriedBytes + sizeof(Stamps));
  if (!on_host.ok()) return on_host.status();
  lane->on_host_ = std::make_shared<const Buffer>(*std::move(on_host));
  return std::unique_ptr<Lane>(std::move(lane));
}

// On a lost device these calls fail, and there is nothing left to free.
CudaLane::~CudaLane() {
  for (void* event : events_) {
    if (event != nullptr) cuda_->event_destroy(device_.index, event);
  }
  if (stream_ != nullptr) cuda_->stream_destroy(device_.index, stream_);
}

size_t CudaLane::device_bytes() const {
  const size_t captured = captured_ == nullptr ? 0 : captured_->buffer().size();
  return inputs_.size() + outputs_.size() + workspace_.size() + captured;
}

absl::Status CudaLane::Reserve(const LaneBytes& bytes) {
  const size_t captured = captured_ == nullptr ? 0 : captured_->buffer().size();
  const std::pair<size_t, size_t> had_and_wanted[] = {{inputs_.size(), bytes.inputs},
                                                      {outputs_.size(), bytes.outputs},
                                                      {workspace_.size(), bytes.workspace},
                                                      {captured, bytes.captured}};
  std::array<Buffer, 4> larger;
  for (size_t i = 0; i < larger.size(); ++i) {
    const auto& [had, wanted] = had_and_wanted[i];
    if (wanted <= had) continue;
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(MemoryKind::kDevice, wanted, device_);
    if (!buffer.ok()) return buffer.status();
    larger[i] = *std::move(buffer);
  }
  Buffer* const held[] = {&inputs_, &outputs_, &workspace_};
  for (size_t i = 0; i < 3; ++i) {
    if (larger[i].size() > 0) *held[i] = std::move(larger[i]);
  }
  if (larger[3].size() > 0) {
    if (captured_ != nullptr) captured_->Outgrow();
    captured_ = std::make_shared<GraphMemory>(std::move(larger[3]), on_host_, totals_);
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

absl::Status CudaLane::Synchronize(const char* what) {
  return CudaStatus(what, cuda_->stream_synchronize(device_.index, stream_));
}

absl::StatusOr<CudaLane::Placed> CudaLane::Place(const LaneBatch& batch) const {
  Room inputs(inputs_), outputs(outputs_);
  Placed placed;
  for (size_t i = 0; i < batch.input_count; ++i) {
    placed.inputs[i] = inputs.Take(batch.inputs[i], batch.rows, device_);
  }
  for (size_t o = 0; o < batch.output_count; ++o) {
    placed.outputs[o] = outputs.Take(batch.outputs[o], batch.rows, device_);
  }
  const size_t needed = batch.block->WorkspaceBytes(batch.rows);
  if (!inputs.enough() || !outputs.enough() || needed > workspace_.size()) {
    return LargerThanReserved();
  }
  placed.workspace = absl::MakeSpan(workspace_.data(), needed);
  return placed;
}

absl::StatusOr<CudaLane::Placed> CudaLane::PlaceIn(const Buffer& memory, const LaneBatch& batch,
                                                   int64_t rows, Device device) {
  Room room(memory);
  Placed placed;
  for (size_t i = 0; i < batch.input_count; ++i) {
    placed.inputs[i] = room.Take(batch.inputs[i], rows, device);
  }
  for (size_t o = 0; o < batch.output_count; ++o) {
    placed.outputs[o] = room.Take(batch.outputs[o], rows, device);
  }
  const size_t needed = batch.block->WorkspaceBytes(rows);
  placed.workspace = absl::MakeSpan(room.Take(needed), needed);
  if (!room.enough()) return LargerThanReserved();
  return placed;
}

absl::Status CudaLane::Launch(const LaneBatch& batch, const Placed& placed) {
  return batch.block->Run(
      {device_, stream_, {}}, absl::MakeConstSpan(placed.inputs.data(), batch.input_count),
      absl::MakeConstSpan(placed.outputs.data(), batch.output_count), placed.workspace);
}

int64_t CudaLane::FreeBytes() const {
  size_t free = 0, total = 0;
  if (cuda_->memory_info(device_.index, &free, &total) != 0) return 0;
  return static_cast<int64_t>(free);
}

std::optional<LaneBatch> CudaLane::Carried(const LaneBatch& batch, int64_t rows,
                                           const Buffer& host) {
  Room inputs(host.data(), kCarriedBytes), outputs(host.data() + kCarriedBytes, kCarriedBytes);
  LaneBatch carried = batch;
  carried.rows = rows;
  for (ConstTensorView& input : carried.inputs) input = inputs.Take(input, rows, input.device);
  for (TensorView& output : carried.outputs) output = outputs.Take(output, rows, output.device);
  if (!inputs.enough() || !outputs.enough()) return std::nullopt;
  return carried;
}

// Filled up with zeros, as CopyIn does.
void CudaLane::PutIn(const LaneBatch& batch, const LaneBatch& carried) {
  for (size_t i = 0; i < batch.input_count; ++i) {
    const size_t bytes = BytesOf(batch.inputs[i]);
    if (bytes == 0) continue;
    auto* to = static_cast<std::byte*>(const_cast<void*>(carried.inputs[i].data));
    std::memcpy(to, batch.inputs[i].data, bytes);
    std::memset(to + bytes, 0, BytesOf(carried.inputs[i]) - bytes);
  }
}

void CudaLane::TakeOut(const LaneBatch& carried, const LaneBatch& batch) {
  for (size_t o = 0; o < batch.output_count; ++o) {
    if (batch.outputs[o].data == nullptr) continue;
    std::memcpy(batch.outputs[o].data, carried.outputs[o].data, BytesOf(batch.outputs[o]));
  }
}

absl::StatusOr<void*> CudaLane::CaptureLaunches(const LaneBatch& batch, const Placed& placed,
                                                const GraphMemory& memory, size_t* launches) {
  const auto carried = Carried(batch, batch.rows, *memory.on_host());
  absl::Status status =
      CudaStatus("beginning a capture", cuda_->capture_begin(device_.index, stream_));
  if (!status.ok()) return status;
  status = carried ? EnqueueCarried(*carried, placed, memory) : Launch(batch, placed);
  void* graph = nullptr;
  const int error = cuda_->capture_end(device_.index, stream_, &graph, launches);
  if (carried) *launches -= std::min<size_t>(*launches, 2);  // the copies
  if (status.ok()) status = CudaStatus("capturing a batch's launches", error);
  if (status.ok()) return graph;
  if (graph != nullptr) cuda_->graph_destroy(device_.index, graph);
  return status;
}

absl::Status CudaLane::Capture(const LaneBatch& batch, std::shared_ptr<BlockGraphs>* graphs) {
  if (captured_ == nullptr) return absl::InternalError("no memory was reserved for graphs");
  const std::shared_ptr<const GraphMemory> memory =
      *graphs == nullptr ? captured_ : (*graphs)->memory();
  const Buffer& buffer = memory->buffer();
  const absl::StatusOr<Placed> placed = PlaceIn(buffer, batch, batch.rows, device_);
  if (!placed.ok()) return placed.status();
  // Once directly: what a kernel or a library loads or allocates at its first launch must not come
  // into a capture.
  absl::Status status = CudaStatus(
      "clearing", cuda_->memset_async(device_.index, buffer.data(), 0, buffer.size(), stream_));
  if (status.ok()) status = Launch(batch, *placed);
  if (absl::Status ran = Synchronize("running a batch of zeros"); status.ok()) status = ran;
  if (!status.ok()) return status;
  const int64_t before = FreeBytes();
  size_t launches = 0;
  const absl::StatusOr<void*> graph = CaptureLaunches(batch, *placed, *memory, &launches);
  if (!graph.ok()) return graph.status();
  if (launches < 2) {  // one launch either way, and as a graph it would need padding
    cuda_->graph_destroy(device_.index, *graph);
    return absl::OkStatus();
  }
  if (*graphs == nullptr) *graphs = std::make_shared<BlockGraphs>(device_, memory, totals_);
  (*graphs)->Add(batch.form, BucketOf(batch.rows), *graph,
                 std::max<int64_t>(0, before - FreeBytes()));
  return absl::OkStatus();
}

absl::Status CudaLane::CopyIn(const LaneBatch& batch, const Placed& placed) {
  for (size_t i = 0; i < batch.input_count; ++i) {
    if (batch.inputs[i].data == nullptr) continue;
    auto* to = static_cast<std::byte*>(const_cast<void*>(placed.inputs[i].data));
    const size_t bytes = BytesOf(batch.inputs[i]);
    const size_t padding = BytesOf(placed.inputs[i]) - bytes;
    if (absl::Status s = Copy(to, batch.inputs[i].data, bytes); !s.ok()) return s;
    // What an earlier batch left there would do no harm to the rows beside it; but zeros cost the
    // multipliers no power, and a row of ids must be in the table.
    if (padding == 0) continue;
    absl::Status s =
        CudaStatus("clearing the padding",
                   cuda_->memset_async(device_.index, to + bytes, 0, padding, stream_));
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CudaLane::CopyOut(const LaneBatch& batch, const Placed& placed) {
  for (size_t o = 0; o < batch.output_count; ++o) {
    if (batch.outputs[o].data == nullptr) continue;
    absl::Status s = Copy(batch.outputs[o].data, placed.outputs[o].data, BytesOf(batch.outputs[o]));
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CudaLane::LaunchGraph(void* graph) {
  return CudaStatus("launching a graph", cuda_->graph_launch(device_.index, graph, stream_));
}

absl::Status CudaLane::Enqueue(const LaneBatch& batch, const Placed& placed, void* graph) {
  if (absl::Status s = Record(kBegin); !s.ok()) return s;
  if (absl::Status s = CopyIn(batch, placed); !s.ok()) return s;
  if (absl::Status s = Record(kCopiedIn); !s.ok()) return s;
  absl::Status launched = graph == nullptr ? Launch(batch, placed) : LaunchGraph(graph);
  if (!launched.ok()) return launched;
  if (absl::Status s = Record(kComputed); !s.ok()) return s;
  if (absl::Status s = CopyOut(batch, placed); !s.ok()) return s;
  return Record(kCopiedOut);
}

// Both sides lay the tensors out alike, so that all inputs are one copy, and all outputs another.
absl::Status CudaLane::EnqueueCarried(const LaneBatch& carried, const Placed& placed,
                                      const GraphMemory& memory) {
  size_t inputs = 0, outputs = 0;
  for (const ConstTensorView& input : carried.inputs) inputs += AlignTensor(BytesOf(input));
  for (const TensorView& output : carried.outputs) outputs += AlignTensor(BytesOf(output));
  std::byte* const here = memory.buffer().data();
  std::byte* const host = memory.on_host()->data();
  Stamps& stamps = StampsIn(*memory.on_host());
  const auto copy = [&](std::byte* to, const std::byte* from, size_t bytes, uint64_t* stamps_of) {
    return CudaStatus("copying a small batch",
                      cuda_->copy_by_kernel(device_.index, to, from, bytes, stamps_of, stream_));
  };
  if (absl::Status s = copy(here, host, inputs, stamps.in); !s.ok()) return s;
  if (absl::Status s = Launch(carried, placed); !s.ok()) return s;
  return copy(host + kCarriedBytes, here + inputs, outputs, stamps.out);
}

absl::Status CudaLane::EnqueueGraph(const LaneBatch& batch, const LaneBatch* carried, void* graph) {
  if (carried != nullptr) {
    PutIn(batch, *carried);
    return LaunchGraph(graph);
  }
  const int64_t rows = kTokenBuckets[BucketOf(batch.rows)];
  const absl::StatusOr<Placed> placed =
      PlaceIn(batch.graphs->memory()->buffer(), batch, rows, device_);
  return placed.ok() ? Enqueue(batch, *placed, graph) : placed.status();
}

absl::Status CudaLane::EnqueueDirectly(const LaneBatch& batch) {
  const absl::StatusOr<Placed> placed = Place(batch);
  return placed.ok() ? Enqueue(batch, *placed, nullptr) : placed.status();
}

absl::Duration CudaLane::Between(int begin, int end) const {
  float ms = 0;
  if (cuda_->event_elapsed_ms(events_[begin], events_[end], &ms) != 0) return absl::ZeroDuration();
  return absl::Milliseconds(ms);
}

absl::Status CudaLane::Run(const LaneBatch& batch, LaneTimes* times) {
  const int bucket = batch.graphs == nullptr ? -1 : BucketOf(batch.rows);
  void* graph = bucket < 0 ? nullptr : batch.graphs->Find(batch.form, bucket);
  std::optional<LaneBatch> carried;
  if (graph != nullptr) {
    carried = Carried(batch, kTokenBuckets[bucket], *batch.graphs->memory()->on_host());
    times->padded_rows = kTokenBuckets[bucket] - batch.rows;
  }
  absl::Status enqueued = graph == nullptr
                              ? EnqueueDirectly(batch)
                              : EnqueueGraph(batch, carried ? &*carried : nullptr, graph);
  // Also after a failure: what was enqueued before it reads and writes the host's staging.
  absl::Status ran = Synchronize("running the batch");
  // A lost device says so at the synchronisation; the launch before may have met a lesser error.
  if (absl::IsUnavailable(ran)) return ran;
  if (!enqueued.ok()) return enqueued;
  if (!ran.ok()) return ran;
  if (carried) {
    TakeOut(*carried, batch);
    const Stamps& stamps = StampsIn(*batch.graphs->memory()->on_host());
    times->h2d = Span(stamps.in[0], stamps.in[1]);
    times->compute = Span(stamps.in[1], stamps.out[0]);
    times->d2h = Span(stamps.out[0], stamps.out[1]);
  } else {
    times->h2d = Between(kBegin, kCopiedIn);
    times->compute = Between(kCopiedIn, kComputed);
    times->d2h = Between(kComputed, kCopiedOut);
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
