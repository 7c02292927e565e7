#include "server/engine/simulated_lane.h"

#include <algorithm>
#include <cstring>

#include "server/engine/buckets.h"
#include "server/engine/cpu_lane.h"

namespace fuseblock {
namespace {

class SimulatedLane final : public Lane {
 public:
  SimulatedLane(Device device, int threads) : device_(device), cpu_(threads) {}

  Device device() const override { return device_; }
  MemoryKind staging() const override { return cpu_.staging(); }
  const Block* BlockOf(const ServedBlock& block) const override { return block.On(Device{}); }
  ParallelFor parallel_for() override { return cpu_.parallel_for(); }
  absl::Status Reserve(const LaneBytes& bytes) override {
    // A padded batch may be larger than the largest that comes.
    LaneBytes padded = bytes;
    for (size_t* term : {&padded.inputs, &padded.outputs, &padded.workspace}) {
      *term = std::max(*term, bytes.captured);
    }
    if (absl::Status s = cpu_.Reserve(padded); !s.ok()) return s;
    if (absl::Status s = GrowTo(padded.inputs, staging(), inputs_); !s.ok()) return s;
    return GrowTo(padded.outputs, staging(), outputs_);
  }
  size_t device_bytes() const override {
    return cpu_.device_bytes() + inputs_.size() + outputs_.size();
  }

  absl::Status Run(const LaneBatch& batch, LaneTimes* times) override {
    const int bucket = BucketOf(batch.rows);
    LaneBatch on_device = batch;
    on_device.rows = bucket < 0 ? batch.rows : kTokenBuckets[bucket];
    std::byte* at = inputs_.data();
    for (size_t i = 0; i < batch.input_count; ++i) {
      if (!Place(at, on_device.rows, on_device.inputs[i])) continue;
      const size_t bytes = BytesOf(batch.inputs[i]);
      const size_t padded_bytes = BytesOf(on_device.inputs[i]);
      std::memcpy(at, batch.inputs[i].data, bytes);
      std::memset(at + bytes, 0, padded_bytes - bytes);
      at += AlignTensor(padded_bytes);
    }
    at = outputs_.data();
    for (size_t o = 0; o < batch.output_count; ++o) {
      if (!Place(at, on_device.rows, on_device.outputs[o])) continue;
      at += AlignTensor(BytesOf(on_device.outputs[o]));
    }
    if (absl::Status s = cpu_.Run(on_device, times); !s.ok()) return s;
    for (size_t o = 0; o < batch.output_count; ++o) {
      if (batch.outputs[o].data == nullptr) continue;
      std::memcpy(batch.outputs[o].data, on_device.outputs[o].data, BytesOf(batch.outputs[o]));
    }
    times->padded_rows = on_device.rows - batch.rows;
    return absl::OkStatus();
  }

 private:
  // False for a view that was left out.
  template <typename View>
  static bool Place(std::byte* at, int64_t rows, View& view) {
    if (view.data == nullptr) return false;
    view.data = at;
    view.shape[0] = rows;
    return true;
  }

  const Device device_;
  CpuLane cpu_;
  Buffer inputs_, outputs_;
};

}  // namespace

LaneFactory SimulatedDevices() {
  return [](Device device, int cpu_threads) -> absl::StatusOr<std::unique_ptr<Lane>> {
    if (device.type == DeviceType::kCpu) return std::make_unique<CpuLane>(cpu_threads);
    return std::make_unique<SimulatedLane>(device, cpu_threads);
  };
}

}  // namespace fuseblock
