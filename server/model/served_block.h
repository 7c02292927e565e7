// A block as it is served: its name, revision and arithmetic, with its weights on every device that
// can run it. Constant once it is published, so anything may hold a reference to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/block/block.h"

namespace fuseblock {

class BlockMetrics;
struct EngineBlock;

struct ServedBlock {
  std::string name;          // "smollm2.layers.0.mlp"
  int64_t revision = 1;      // > 0
  std::string family;        // config.json's model_type
  std::string content_hash;  // hexadecimal; weights and spec
  std::string formula;       // for people
  BlockSpec spec;
  std::vector<BlockTensor> inputs, outputs;          // Block::Inputs(spec), Block::Outputs(spec)
  std::vector<std::shared_ptr<const Block>> blocks;  // one per device, the preferred one first

  // What other layers keep beside the block, so that the serving path looks nothing up. Both are
  // set by Engine::Prepare, before the block is published, and constant from then on.
  mutable BlockMetrics* metrics = nullptr;
  mutable std::shared_ptr<EngineBlock> engine;

  // The block on that device, or null.
  const Block* On(Device device) const {
    for (const auto& block : blocks) {
      if (block->device() == device) return block.get();
    }
    return nullptr;
  }
};

}  // namespace fuseblock
