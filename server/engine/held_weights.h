// What blocks hold of an engine's devices: counted, and kept while a lane hangs. To free memory of
// a device the driver may wait for what runs there, for ever if need be; so whoever drops a block
// then, a load that failed, an operator, the last request, leaves it here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/block/block.h"
#include "server/observe/metrics.h"

namespace fuseblock {

class BlockGraphs;

// Counted in weights_bytes as long as there is this.
class CountedWeights {
 public:
  CountedWeights(std::shared_ptr<const Block> block, BlockMetrics* metrics);
  ~CountedWeights();
  CountedWeights(const CountedWeights&) = delete;
  CountedWeights& operator=(const CountedWeights&) = delete;

  const Block& block() const { return *block_; }
  int64_t bytes() const { return static_cast<int64_t>(block_->weight_bytes()); }

 private:
  const std::shared_ptr<const Block> block_;
  BlockMetrics* const metrics_;
};

// Thread-safe. Outlives the engine with the last block.
class HeldWeights {
 public:
  // A block's, on one device.
  struct Share {
    std::shared_ptr<const CountedWeights> weights;
    std::vector<std::shared_ptr<BlockGraphs>> graphs;
  };

  explicit HeldWeights(size_t devices) : devices_(devices) {}
  // What is kept still stays where it is until the process ends.
  ~HeldWeights();
  HeldWeights(const HeldWeights&) = delete;
  HeldWeights& operator=(const HeldWeights&) = delete;

  // Of all weights that were taken for the device and are not free.
  int64_t bytes(size_t device) const;
  void Take(size_t device, const CountedWeights& weights);
  // Frees it, or, while a lane of the device hangs, lets the lane do so when it comes back.
  void LetGo(size_t device, Share share);

  void LaneHangs(size_t device);
  // Frees what waited for it.
  void LaneCameBack(size_t device);

 private:
  struct PerDevice {
    int64_t bytes = 0;
    int hanging = 0;  // lanes; -1 for one that came back before it was told to hang
    std::vector<Share> kept;
  };
  void Free(size_t device, std::vector<Share> shares);

  mutable std::mutex mutex_;
  std::vector<PerDevice> devices_;
};

}  // namespace fuseblock
