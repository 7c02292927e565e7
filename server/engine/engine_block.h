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
#include "server/engine/lane.h"
#include "server/engine/queue.h"
#include "server/observe/metrics.h"

namespace fuseblock {

// The form of a request's inputs: requests of one form can share a batch.
// Bit 0: the optional input came. Bit 1: the first input has the second of the dtypes it may have.
inline constexpr int kForms = 4;

struct EngineBlock {
  // on_device: the block as each of the engine's devices runs it; null where it can't. budget: what
  // of it may be admitted; null for no more than the server bounds.
  EngineBlock(const ServedBlock& served, std::vector<const Block*> on_device,
              int64_t batch_tokens_max, const std::shared_ptr<BudgetAccount>& budget,
              BlockMetrics* metrics);
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
  size_t RowBytes(int form) const;  // of all inputs and outputs

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

  // Guarded by the engine's lock.
  std::vector<CostModel> costs;  // by device
  std::array<BatchQueue, kForms> queues;

 private:
  struct Weights {
    Device device;
    int64_t bytes;
  };
  std::vector<Weights> weights_;
};

}  // namespace fuseblock
