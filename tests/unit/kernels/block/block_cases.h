// What the tests of blocks share: seeded weights, a block of each kind, and a run with a workspace
// of exactly the bytes that the block asks for.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/block/block.h"
#include "tests/support/host_tensor.h"
#include "tests/support/workspace.h"

namespace fuseblock::testing {

inline constexpr int64_t kHidden = 70;
inline constexpr int64_t kIntermediate = 149;
inline constexpr int64_t kVocabulary = 37;
inline constexpr BlockKind kKinds[] = {BlockKind::kNormResidual, BlockKind::kMlp,
                                       BlockKind::kFfnPath, BlockKind::kEmbedding};
inline constexpr Rounding kRoundings[] = {Rounding::kFused, Rounding::kHf};

// Host memory of a layer's weights, as a checkpoint holds them.
struct LayerWeights {
  HostTensor norm, gate, up, down, table;

  BlockWeights views() const {
    BlockWeights weights;
    weights.norm = norm.view();
    weights.gate = gate.view();
    weights.up = up.view();
    weights.down = down.view();
    weights.table = table.view();
    return weights;
  }
};

inline LayerWeights NormalWeights(DType dtype, uint32_t seed) {
  const float in = 1 / std::sqrt(static_cast<float>(kHidden));
  const float out = 1 / std::sqrt(static_cast<float>(kIntermediate));
  return {NormalTensor(dtype, {kHidden}, seed, 1),
          NormalTensor(dtype, {kIntermediate, kHidden}, seed + 1, 2 * in),
          NormalTensor(dtype, {kIntermediate, kHidden}, seed + 2, in),
          NormalTensor(dtype, {kHidden, kIntermediate}, seed + 3, out),
          NormalTensor(dtype, {kVocabulary, kHidden}, seed + 4, 1)};
}

inline BlockSpec SpecOf(BlockKind kind, DType dtype, Rounding rounding) {
  BlockSpec spec;
  spec.kind = kind;
  spec.dtype = dtype;
  spec.hidden = kHidden;
  spec.intermediate = kIntermediate;
  spec.vocabulary = kVocabulary;
  spec.norm = {1e-5f, 0, RmsNormForm::kNormalisedFirst};
  spec.rounding = rounding;
  return spec;
}

inline std::unique_ptr<const Block> Created(const BlockSpec& spec, const BlockWeights& weights) {
  auto block = Block::Create(spec, weights, Device());
  EXPECT_TRUE(block.ok()) << block.status();
  return block.ok() ? *std::move(block) : nullptr;
}

inline HostTensor Ids(std::vector<int32_t> ids) {
  HostTensor tensor(DType::kI32, {static_cast<int64_t>(ids.size())});
  std::memcpy(tensor.row(0), ids.data(), ids.size() * sizeof(int32_t));
  return tensor;
}

// Inputs of `rows` rows, every optional one there.
inline std::vector<HostTensor> InputsOf(const BlockSpec& spec, int64_t rows, uint32_t seed) {
  std::vector<HostTensor> inputs;
  if (spec.kind == BlockKind::kEmbedding) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < rows; ++i) {
      ids.push_back(static_cast<int32_t>((seed + 11 * static_cast<uint32_t>(i)) % kVocabulary));
    }
    inputs.push_back(Ids(ids));
    return inputs;
  }
  for (const BlockTensor& input : Block::Inputs(spec)) {
    inputs.push_back(NormalTensor(spec.dtype, {rows, input.columns}, seed++));
  }
  return inputs;
}

// The rows [first, first + count) as dense tensors of their own, `offset` bytes from alignment.
inline std::vector<HostTensor> Part(const std::vector<HostTensor>& inputs, int64_t first,
                                    int64_t count, size_t offset = 0) {
  std::vector<HostTensor> part;
  for (const HostTensor& input : inputs) {
    const bool ids = input.dtype() == DType::kI32;
    const size_t size = ids ? sizeof(int32_t) : input.row_bytes();
    HostTensor& out = ids ? part.emplace_back(DType::kI32, std::vector<int64_t>{count}, 0, offset)
                          : part.emplace_back(input.dtype(),
                                              std::vector<int64_t>{count, input.cols()}, 0, offset);
    if (count > 0) {
      std::memcpy(out.row(0), input.row(0) + static_cast<size_t>(first) * size,
                  static_cast<size_t>(count) * size);
    }
  }
  return part;
}

// Runs the block; `optional`: with its optional input. The outputs lie `offset` bytes from
// alignment.
inline std::vector<HostTensor> RunBlock(const Block& block, const std::vector<HostTensor>& inputs,
                                        int64_t rows, bool optional = true,
                                        const ParallelFor& parallel_for = {}, size_t offset = 0) {
  const BlockSpec& spec = block.spec();
  std::vector<ConstTensorView> input_views;
  std::vector<HostTensor> outputs;
  std::vector<TensorView> output_views;
  const std::vector<BlockTensor> wanted = Block::Inputs(spec);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const bool left_out = wanted[i].optional && !optional;
    input_views.push_back(left_out ? ConstTensorView() : inputs[i].view());
  }
  for (const BlockTensor& output : Block::Outputs(spec)) {
    outputs.emplace_back(spec.dtype, std::vector<int64_t>{rows, output.columns}, 0, offset);
    output_views.push_back(output.optional && !optional ? TensorView() : outputs.back().view());
  }
  Workspace workspace(block.WorkspaceBytes(rows));
  const absl::Status status = block.Run(ExecutionContext{Device(), nullptr, parallel_for},
                                        input_views, output_views, workspace.span());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(workspace.GuardsIntact()) << std::string(Name(spec.kind)) << ", " << rows << " rows";
  for (const HostTensor& output : outputs) EXPECT_TRUE(output.GuardsIntact());
  if (!optional && outputs.size() > 1) outputs.pop_back();
  return outputs;
}

}  // namespace fuseblock::testing
