// The launches of one block on one GPU lane, captured as CUDA graphs by form of its inputs and
// token bucket: what the host hands to the driver for a small batch is then one call instead of one
// per kernel.
//
// A graph holds the kernels alone, with the addresses of the lane's small memory in them; copies in
// and out are enqueued around it, because answers lie in another slab each time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda.h"
#include "server/engine/buckets.h"
#include "server/engine/lane.h"

namespace fuseblock {

// What all graphs of a lane come to. Outlives the lane with the last block's graphs.
struct GraphTotals {
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> bytes{0};  // on the device, as seen from outside: the driver's own
};

// Constant once the block is published. Lives with the block, so possibly longer than its lane.
class BlockGraphs {
 public:
  BlockGraphs(Device device, std::shared_ptr<Buffer> memory, std::shared_ptr<GraphTotals> totals)
      : device_(device), memory_(std::move(memory)), totals_(std::move(totals)) {}
  ~BlockGraphs();
  BlockGraphs(const BlockGraphs&) = delete;
  BlockGraphs& operator=(const BlockGraphs&) = delete;

  // What the graphs read and write: inputs, outputs, workspace, as CudaLane places them.
  const std::shared_ptr<Buffer>& memory() const { return memory_; }
  // Takes the graph over; `bytes`: what the device had less of afterwards.
  void Add(int form, int bucket, void* graph, int64_t bytes);
  // Null where there is none.
  void* Find(int form, int bucket) const { return graphs_[form][bucket]; }

 private:
  const Device device_;
  const std::shared_ptr<Buffer> memory_;
  const std::shared_ptr<GraphTotals> totals_;
  std::array<std::array<void*, kTokenBucketCount>, kForms> graphs_{};
  int64_t count_ = 0, bytes_ = 0;
};

}  // namespace fuseblock
