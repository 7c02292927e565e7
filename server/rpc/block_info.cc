#include "server/rpc/block_info.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/rpc/codec.h"

namespace fuseblock {
namespace {

v1::BlockState ToWire(BlockState state) {
  switch (state) {
    case BlockState::kLoading:
      return v1::BLOCK_STATE_LOADING;
    case BlockState::kReady:
      return v1::BLOCK_STATE_READY;
    case BlockState::kFailed:
      return v1::BLOCK_STATE_FAILED;
    case BlockState::kUnloading:
      return v1::BLOCK_STATE_UNLOADING;
  }
  return v1::BLOCK_STATE_UNSPECIFIED;
}

v1::TensorSpec ToWire(const BlockTensor& tensor) {
  v1::TensorSpec spec;
  spec.set_name(tensor.name);
  for (const DType dtype : tensor.dtypes) spec.add_data_types(fuseblock::ToWire(dtype));
  spec.add_shape(-1);
  if (tensor.columns > 0) spec.add_shape(tensor.columns);
  spec.set_optional(tensor.optional);
  return spec;
}

void Describe(const ServedBlock& block, v1::BlockInfo* info) {
  info->set_kind(std::string(Name(block.spec.kind)));
  for (const BlockTensor& tensor : block.inputs) *info->add_inputs() = ToWire(tensor);
  for (const BlockTensor& tensor : block.outputs) *info->add_outputs() = ToWire(tensor);
  info->set_formula(block.formula);
  info->set_rounding(block.spec.rounding == Rounding::kHf ? "hf" : "fused");
  info->set_content_hash(block.content_hash);
  info->set_hidden_size(block.spec.hidden);
  info->set_intermediate_size(block.spec.intermediate);
  for (const auto& device_block : block.blocks) {
    info->add_backends(DeviceName(device_block->device()));
  }
  if (!block.blocks.empty()) {
    info->set_weight_bytes(static_cast<int64_t>(block.blocks.front()->weight_bytes()));
  }
  info->set_family(block.family);
}

}  // namespace

v1::BlockInfo InfoOf(const BlockStatus& status, const ServedBlock* served,
                     int64_t request_tokens_max) {
  v1::BlockInfo info;
  info.set_name(status.name);
  for (const int64_t revision : status.revisions) info.add_revisions(absl::StrCat(revision));
  if (status.current > 0) info.set_current_revision(absl::StrCat(status.current));
  info.set_state(ToWire(status.state));
  info.set_state_reason(status.reason);
  info.set_max_request_tokens(request_tokens_max);
  if (served != nullptr) Describe(*served, &info);
  return info;
}

}  // namespace fuseblock
