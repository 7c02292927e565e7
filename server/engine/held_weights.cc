#include "server/engine/held_weights.h"

#include <utility>

#include "server/engine/cuda_graphs.h"

namespace fuseblock {
namespace {

// Where what lies on a device that hangs for good stays until the process ends.
void LeaveBehind(HeldWeights::Share share) {
  static std::mutex mutex;
  static auto* left = new std::vector<HeldWeights::Share>();
  std::lock_guard<std::mutex> lock(mutex);
  left->push_back(std::move(share));
}

}  // namespace

CountedWeights::CountedWeights(std::shared_ptr<const Block> block, BlockMetrics* metrics)
    : block_(std::move(block)), metrics_(metrics) {
  metrics_->AddWeightBytes(block_->device(), bytes());
}

CountedWeights::~CountedWeights() { metrics_->AddWeightBytes(block_->device(), -bytes()); }

HeldWeights::~HeldWeights() {
  for (PerDevice& device : devices_) {
    for (Share& share : device.kept) LeaveBehind(std::move(share));
  }
}

int64_t HeldWeights::bytes(size_t device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_[device].bytes;
}

void HeldWeights::Take(size_t device, const CountedWeights& weights) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[device].bytes += weights.bytes();
}

void HeldWeights::LetGo(size_t device, Share share) {
  std::vector<Share> shares;
  shares.push_back(std::move(share));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (devices_[device].hanging > 0) {
      devices_[device].kept.push_back(std::move(shares.front()));
      return;
    }
  }
  Free(device, std::move(shares));
}

// Outside the lock: it takes its time.
void HeldWeights::Free(size_t device, std::vector<Share> shares) {
  int64_t bytes = 0;
  for (const Share& share : shares) bytes += share.weights->bytes();
  shares.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[device].bytes -= bytes;
}

void HeldWeights::LaneHangs(size_t device) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++devices_[device].hanging;
}

void HeldWeights::LaneCameBack(size_t device) {
  std::vector<Share> shares;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--devices_[device].hanging == 0) shares.swap(devices_[device].kept);
  }
  Free(device, std::move(shares));
}

}  // namespace fuseblock
