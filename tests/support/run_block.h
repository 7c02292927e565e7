// Runs a block on the CPU with tensors that own their memory.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/half.h"
#include "kernels/block/block.h"

namespace fuseblock::testing {

// Rows of a dtype, as bytes. An absent optional tensor has no dims.
struct RowTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;
  std::string bytes;

  ConstTensorView view() const {
    return dims.empty() ? ConstTensorView() : ConstTensorView(bytes.data(), dtype, dims);
  }
  std::vector<float> values() const {
    std::vector<float> out;
    VisitFloat(dtype, [&](auto type) {
      for (size_t at = 0; at < bytes.size(); at += sizeof(type)) {
        std::memcpy(&type, bytes.data() + at, sizeof(type));
        out.push_back(ToFloat(type));
      }
    });
    return out;
  }
};

// The outputs that exist for these inputs (missing ones at the end are absent).
inline absl::StatusOr<std::vector<RowTensor>> RunOnCpu(const Block& block,
                                                       std::vector<RowTensor> inputs) {
  const BlockSpec& spec = block.spec();
  inputs.resize(Block::Inputs(spec).size());
  const int64_t rows = inputs[0].dims[0];
  std::vector<ConstTensorView> input_views;
  for (const RowTensor& input : inputs) input_views.push_back(input.view());
  std::vector<RowTensor> outputs;
  for (const BlockTensor& output : Block::Outputs(spec)) {
    RowTensor& tensor = outputs.emplace_back();
    if (output.optional && inputs.back().dims.empty()) continue;
    tensor = {spec.dtype, {rows, output.columns}, ""};
    tensor.bytes.assign(static_cast<size_t>(rows * output.columns * SizeOf(spec.dtype)), '\xA5');
  }
  std::vector<TensorView> output_views;
  for (RowTensor& output : outputs) {
    output_views.push_back(output.dims.empty()
                               ? TensorView()
                               : TensorView(output.bytes.data(), output.dtype, output.dims));
  }
  absl::StatusOr<Buffer> workspace =
      Buffer::Allocate(MemoryKind::kHost, block.WorkspaceBytes(rows));
  if (!workspace.ok()) return workspace.status();
  const absl::Status status = block.Run({}, input_views, output_views,
                                        absl::MakeSpan(workspace->data(), workspace->size()));
  if (!status.ok()) return status;
  return outputs;
}

}  // namespace fuseblock::testing
