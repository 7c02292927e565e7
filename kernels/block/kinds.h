// The table of block kinds: private to block/. A new kind is one entry here and one in BlockKind.
#pragma once

#include "kernels/base/buffer.h"
#include "kernels/block/block.h"
#include "kernels/feed_forward/feed_forward.h"

namespace fuseblock {

// A weight that is read as it lies: a norm's vector, an embedding's table.
struct DeviceTensor {
  Buffer buffer;
  ConstTensorView view;
};

struct Block::Prepared {
  std::vector<BlockTensor> inputs, outputs;
  DeviceTensor norm;
  std::shared_ptr<const FeedForwardWeights> mlp;  // of several blocks where a cache shares it
  DeviceTensor table;
  size_t bytes = 0;  // of all weights that no earlier block counts
};

// What a kind's run works on. inputs and outputs have been checked against the kind's lists.
struct BlockRun {
  const ExecutionContext& context;
  const BlockSpec& spec;
  const Block::Prepared& weights;
  int64_t rows;
  absl::Span<const ConstTensorView> inputs;
  absl::Span<const TensorView> outputs;
  absl::Span<std::byte> workspace;
};

struct KindEntry {
  BlockKind kind;
  std::string_view name;
  bool has_norm, has_mlp, has_table;  // the weights it needs
  std::vector<BlockTensor> (*inputs)(const BlockSpec&);
  std::vector<BlockTensor> (*outputs)(const BlockSpec&);
  std::string (*formula)(const BlockSpec&);
  size_t (*workspace)(const BlockSpec&, const Block::Prepared&, int64_t rows);
  absl::Status (*run)(const BlockRun&);
};

const KindEntry& EntryOf(BlockKind kind);

// Converts, checks and moves the weights that the entry needs; cache may be null. INVALID_ARGUMENT
// naming the role.
absl::Status PrepareWeights(const KindEntry& entry, const BlockSpec& spec,
                            const BlockWeights& weights, Device device,
                            const ParallelFor& parallel_for, BlockWeightCache* cache,
                            Block::Prepared& prepared);

}  // namespace fuseblock
