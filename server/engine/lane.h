// A lane: one stream of a GPU, or the CPU's team of threads, with the device memory that a batch
// needs. It runs one batch at a time, from host memory to host memory.
//
// This interface is the one seam where a device can be replaced or made to fail (faulty_lane.h).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/align.h"
#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "server/model/served_block.h"

namespace fuseblock {

// The form of a request's inputs, by bits: requests of one form can share a batch.
inline constexpr int kFormWithOptional = 1;  // the optional input came
inline constexpr int kFormSecondDType = 2;   // the first input has the second dtype it may have
inline constexpr int kForms = 4;

class BlockGraphs;  // cuda_graphs.h
class MemoryGauge;  // metrics.h

// A batch in the host's memory, of the kind that Lane::staging() names. Views as Block::Run takes
// them: dense, and without data where an optional tensor is left out.
struct LaneBatch {
  const Block* block = nullptr;
  const BlockGraphs* graphs = nullptr;  // the block's on this lane; null: it launches directly
  int form = 0;
  int64_t rows = 0;
  size_t input_count = 0, output_count = 0;  // as the block has them, the left-out ones too
  std::array<ConstTensorView, 2> inputs;
  std::array<TensorView, 2> outputs;
};

struct LaneTimes {
  absl::Duration h2d, compute, d2h;
  int64_t padded_rows = 0;  // computed beside the batch's own, to fill its bucket (buckets.h)
};

// What a lane must hold for the largest batch of every block.
struct LaneBytes {
  size_t inputs = 0;   // all inputs of a batch together, each rounded up to 256
  size_t outputs = 0;  // the same of its outputs
  size_t workspace = 0;
  size_t captured = 0;  // all three for the largest token bucket: what graphs work on

  bool FitIn(const LaneBytes& room) const {
    return inputs <= room.inputs && outputs <= room.outputs && workspace <= room.workspace &&
           captured <= room.captured;
  }
};
// Room for both.
LaneBytes Larger(const LaneBytes& a, const LaneBytes& b);

// What all graphs of a lane come to. Bytes on the device: the driver's own, and memory that they
// alone still work on because the lane outgrew it.
struct GraphCount {
  int64_t count = 0, bytes = 0;
};

class Lane {
 public:
  virtual ~Lane() = default;

  virtual Device device() const = 0;
  // The kind of host memory that batches must lie in.
  virtual MemoryKind staging() const = 0;
  // The block as this lane runs it, or null when it can't.
  virtual const Block* BlockOf(const ServedBlock& block) const { return block.On(device()); }

  // The threads for the host's part of a batch, its gathering: where the host also computes, those
  // that do.
  virtual ParallelFor parallel_for() { return {}; }

  // Grows the lane's own memory to at least that; RESOURCE_EXHAUSTED leaves it as it was.
  virtual absl::Status Reserve(const LaneBytes& bytes) = 0;
  // Bytes held on the device, without what graphs() counts.
  virtual size_t device_bytes() const = 0;
  // Bytes held on the host beside the staging, of its kind; constant.
  virtual size_t host_bytes() const { return 0; }

  // Captures the launches of batches like that one (its block, form and rows, a token bucket; the
  // data is not looked at), or all that Run enqueues for them, into *graphs, which it makes if it
  // is null. A lane that captures nothing, or a block for which that saves nothing, leaves *graphs
  // as it is. Needs what Reserve gave; runs the block on zeros. Not while Run is under way.
  virtual absl::Status Capture(const LaneBatch&, std::shared_ptr<BlockGraphs>*) {
    return absl::OkStatus();
  }
  virtual GraphCount graphs() const { return {}; }
  // The bytes of graphs() are that gauge's, too, as long as there are any: blocks may keep graphs
  // longer than the lane lives. Before anything is captured.
  virtual void CountGraphsIn(MemoryGauge*) {}

  // Runs the batch and returns when the outputs are in the host's memory. Needs what Reserve gave.
  // UNAVAILABLE: the device is lost. RESOURCE_EXHAUSTED: it had no memory for this batch. INTERNAL:
  // the launch failed.
  virtual absl::Status Run(const LaneBatch& batch, LaneTimes* times) = 0;
};

using LaneFactory =
    std::function<absl::StatusOr<std::unique_ptr<Lane>>(Device device, int cpu_threads)>;

// The real thing. cpu_threads: of a CPU lane; 0: the machine's cores.
absl::StatusOr<std::unique_ptr<Lane>> MakeLane(Device device, int cpu_threads);

// Bytes of a dense view; 0 for one without data.
size_t BytesOf(const ConstTensorView& view);
// Replaces a buffer that has fewer bytes by one of that many, whose contents are nobody's yet. It
// stays as it is where there is no memory.
absl::Status GrowTo(size_t bytes, MemoryKind kind, Buffer& buffer);

}  // namespace fuseblock
