// What the engine keeps beside a served block: its queues, its costs, and the sizes of its tensors'
// rows.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/cost_model.h"
#include "server/engine/held_weights.h"
#include "server/engine/lane.h"
#include "server/engine/queue.h"
#include "server/observe/metrics.h"

namespace fuseblock {

// Whether requests of that form can come to a block with such inputs.
bool HasForm(const std::vector<BlockTensor>& inputs, int form);

struct EngineBlock {
  // on_device: of the served block's, the one that each of the engine's devices runs; null where
  // there is none. Their weights live at least as long as this. budget: what
  // of it may be admitted; null for no more than the server bounds.
  EngineBlock(const ServedBlock& served, std::vector<const Block*> on_device,
              int64_t batch_tokens_max, const std::shared_ptr<BudgetAccount>& budget,
              BlockMetrics* metrics, std::shared_ptr<HeldWeights> held);
  ~EngineBlock();
  EngineBlock(const EngineBlock&) = delete;
  EngineBlock& operator=(const EngineBlock&) = delete;

  // The request's form. BAD_TENSOR, naming the input, expected and given, when its inputs do not
  // fit the block or its tokens.
  absl::StatusOr<int> FormOf(const Request& request) const;

  bool HasInput(int form, size_t input) const;
  // An optional output comes with the optional input.
  bool HasOutput(int form, size_t output) const;
  DType InputDType(int form, size_t input) const;
  size_t InputRowBytes(int form, size_t input) const;
  size_t OutputRowBytes(size_t output) const;
  size_t OutputBytes(int form, int64_t rows) const;  // room for the outputs as LayOut places them
  size_t RowBytes(int form) const;                   // of all inputs and outputs
  // Where a batch's tensors lie, each from a 256-byte boundary on: what is left of a LaneBatch is
  // the lane's.
  LaneBatch LayOut(int form, int64_t rows, std::byte* staging_in, std::byte* staging_out) const;

  // What a lane of that device needs for any batch of the block.
  LaneBytes BytesNeeded(size_t device, int64_t rows) const;

  // The device that answers the block while nothing is lost. Precondition: one has it.
  size_t PreferredDevice() const;

  // Constant.
  const std::string name;
  const BlockKind kind;
  const int64_t vocabulary;
  const std::vector<BlockTensor> inputs, outputs;
  const std::vector<const Block*> on_device;
  const std::vector<bool> has;  // by device
  BlockMetrics* const metrics;
  // By device and lane; null where it launches directly. Set before the block is published.
  std::vector<std::vector<std::shared_ptr<BlockGraphs>>> graphs;
  // The longest batch that a caller's own lane has room for. Set before the block is published.
  int64_t caller_tokens_max = 0;

  // Guarded by the engine's lock.
  std::vector<CostModel> costs;  // by device
  std::array<BatchQueue, kForms> queues;

 private:
  std::vector<std::shared_ptr<const CountedWeights>> weights_;     // as the served block has them
  std::vector<std::shared_ptr<const CountedWeights>> on_devices_;  // by device; null where not
  const std::shared_ptr<HeldWeights> held_;
};

}  // namespace fuseblock
