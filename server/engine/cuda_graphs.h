// The launches of one block on one GPU lane, captured as CUDA graphs by form of its inputs and
// token bucket: what the host hands to the driver for a small batch is then one call instead of one
// per kernel.
//
// A graph holds the addresses of the lane's small memory. Of the smallest batches it is all that
// the lane enqueues: the copies in and out, too, from and to pinned memory where they are put and
// taken from (each call less is some microseconds of a request that takes some hundreds). They are
// kernels: between a copy engine and a kernel the device waits, and an event takes its time on both
// sides. Such a graph names what is its lane's: it is never launched without it. Of the others it
// is the kernels alone, with the copies around it from the staging and to a slab of answers, which
// lie in another place each time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda.h"
#include "server/engine/buckets.h"
#include "server/engine/lane.h"
#include "server/observe/metrics.h"

namespace fuseblock {

// What all graphs of a lane come to. Outlives the lane with the last block's graphs.
class GraphTotals {
 public:
  // What they take is counted there, too. Before anything is captured.
  void CountIn(MemoryGauge* gauge) { gauge_ = gauge; }
  // bytes: on the device; the driver's own, as seen from outside, or of GraphMemory in whose place
  // the lane has larger by now.
  void Add(int64_t count, int64_t bytes) {
    count_ += count;
    bytes_ += bytes;
    if (gauge_ != nullptr) gauge_->AddReserved(bytes);
  }
  GraphCount sum() const { return {count_, bytes_}; }

 private:
  std::atomic<int64_t> count_{0}, bytes_{0};
  MemoryGauge* gauge_ = nullptr;  // outlives all blocks
};

// Memory that graphs work on, with their lane's memory on the host. A lane has that of the device
// until it needs larger; then it lives on with the graphs that hold its address, and counts as
// theirs. That on the host is counted as long as the lane lives.
class GraphMemory {
 public:
  GraphMemory(Buffer buffer, std::shared_ptr<const Buffer> on_host,
              std::shared_ptr<GraphTotals> totals)
      : buffer_(std::move(buffer)), on_host_(std::move(on_host)), totals_(std::move(totals)) {}
  ~GraphMemory() {
    if (outgrown_) totals_->Add(0, -static_cast<int64_t>(buffer_.size()));
  }
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  const Buffer& buffer() const { return buffer_; }
  const std::shared_ptr<const Buffer>& on_host() const { return on_host_; }
  // By the lane, when it lets go.
  void Outgrow() {
    outgrown_ = true;
    totals_->Add(0, static_cast<int64_t>(buffer_.size()));
  }

 private:
  const Buffer buffer_;
  const std::shared_ptr<const Buffer> on_host_;
  const std::shared_ptr<GraphTotals> totals_;
  std::atomic<bool> outgrown_{false};
};

// Constant once the block is published. Lives with the block, so possibly longer than its lane.
class BlockGraphs {
 public:
  BlockGraphs(Device device, std::shared_ptr<const GraphMemory> memory,
              std::shared_ptr<GraphTotals> totals)
      : device_(device), memory_(std::move(memory)), totals_(std::move(totals)) {}
  ~BlockGraphs();
  BlockGraphs(const BlockGraphs&) = delete;
  BlockGraphs& operator=(const BlockGraphs&) = delete;

  // What the graphs read and write: inputs, outputs, workspace, as CudaLane places them.
  const std::shared_ptr<const GraphMemory>& memory() const { return memory_; }
  // Takes the graph over; `bytes`: what the device had less of afterwards.
  void Add(int form, int bucket, void* graph, int64_t bytes);
  // Null where there is none.
  void* Find(int form, int bucket) const { return graphs_[form][bucket]; }

 private:
  const Device device_;
  const std::shared_ptr<const GraphMemory> memory_;
  const std::shared_ptr<GraphTotals> totals_;
  std::array<std::array<void*, kTokenBucketCount>, kForms> graphs_{};
  int64_t count_ = 0, bytes_ = 0;
};

}  // namespace fuseblock
