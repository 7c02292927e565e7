// Creates a block and runs it: what all kinds share. What differs stands in the table of kinds.cc.
#include "kernels/block/block.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/base/workspace.h"
#include "kernels/block/kinds.h"

namespace fuseblock {
namespace {

absl::Status CheckPositive(const char* name, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("spec.", name, ": expected > 0, got ", value));
}

absl::Status CheckSpec(const KindEntry& entry, const BlockSpec& spec) {
  if (Traits(spec.dtype).epsilon == 0) {
    return absl::InvalidArgumentError(absl::StrCat("spec.dtype: expected FP32, FP16 or BF16, got ",
                                                   std::string(Name(spec.dtype))));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckPositive("hidden", spec.hidden));
  if (entry.has_mlp) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckPositive("intermediate", spec.intermediate));
    if (!FormOf(spec.activation, spec.gated).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("spec.activation: expected gelu_tanh or gelu_erf without a gate, got ",
                       std::string(Name(spec.activation))));
    }
  }
  if (entry.has_table) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckPositive("vocabulary", spec.vocabulary));
  }
  if (entry.has_norm && !(spec.norm.eps > 0 && std::isfinite(spec.norm.eps))) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.norm.eps: expected > 0 and finite, got ", spec.norm.eps));
  }
  return absl::OkStatus();
}

std::string ExpectedText(const BlockTensor& tensor, int64_t rows) {
  const std::string shape = tensor.columns == 0
                                ? absl::StrCat("[", rows, "]")
                                : absl::StrCat("[", rows, ", ", tensor.columns, "]");
  const std::string dtypes = absl::StrJoin(
      tensor.dtypes, " or ", [](std::string* out, DType dtype) { out->append(Name(dtype)); });
  return absl::StrCat(tensor.name, ": expected ", shape, " ", dtypes);
}

// OK for a dense [rows, columns] of an accepted dtype on the device, or for a left-out optional
// tensor.
absl::Status CheckTensor(const BlockTensor& tensor, const ConstTensorView& view, int64_t rows,
                         Device device) {
  if (view.rank == 0 && view.data == nullptr && tensor.optional) return absl::OkStatus();
  const int rank = tensor.columns == 0 ? 1 : 2;
  bool fits = view.rank == rank && view.shape[0] == rows;
  if (fits && rank == 2) fits = view.shape[1] == tensor.columns;
  bool dtype_fits = false;
  for (DType dtype : tensor.dtypes) dtype_fits = dtype_fits || dtype == view.dtype;
  if (!fits || !dtype_fits) {
    return absl::InvalidArgumentError(
        absl::StrCat(ExpectedText(tensor, rows), ", got ", Describe(view)));
  }
  const bool dense = (rank == 1 || view.shape[1] <= 1 || view.stride[1] == 1) &&
                     (rows <= 1 || view.stride[0] == (rank == 1 ? 1 : view.shape[1]));
  if (!dense) {
    return absl::InvalidArgumentError(
        absl::StrCat(ExpectedText(tensor, rows), ", dense, got strides [", view.stride[0],
                     rank == 2 ? absl::StrCat(", ", view.stride[1]) : "", "]"));
  }
  if (view.device != device) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.name, ": expected on ", DeviceName(device), ", got ", DeviceName(view.device)));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const Block::Prepared& prepared, Device device, int64_t rows,
                          absl::Span<const ConstTensorView> inputs,
                          absl::Span<const TensorView> outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckTensor(prepared.inputs[i], inputs[i], rows, device));
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckTensor(prepared.outputs[o], outputs[o], rows, device));
    if (outputs[o].rank == 0) continue;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].rank == 0) continue;
      FUSEBLOCK_RETURN_IF_ERROR(
          CheckApart(prepared.outputs[o].name, outputs[o], prepared.inputs[i].name, inputs[i]));
    }
  }
  // An optional output exists exactly when the optional input came.
  if (inputs.size() == 2 && outputs.size() == 2 &&
      (inputs[1].rank == 0) != (outputs[1].rank == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(prepared.outputs[1].name, ": expected with ",
                                                   prepared.inputs[1].name, " and only with it"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(BlockKind kind) { return EntryOf(kind).name; }

Block::Block(const BlockSpec& spec, Device device, std::unique_ptr<Prepared> prepared)
    : spec_(spec), device_(device), prepared_(std::move(prepared)) {}
Block::~Block() = default;

absl::StatusOr<std::unique_ptr<const Block>> Block::Create(const BlockSpec& spec,
                                                           const BlockWeights& weights,
                                                           Device device,
                                                           const ParallelFor& parallel_for,
                                                           BlockWeightCache* cache) {
  const KindEntry& entry = EntryOf(spec.kind);
  FUSEBLOCK_RETURN_IF_ERROR(CheckSpec(entry, spec));
  auto prepared = std::make_unique<Prepared>();
  prepared->inputs = entry.inputs(spec);
  prepared->outputs = entry.outputs(spec);
  absl::Status s = PrepareWeights(entry, spec, weights, device, parallel_for, cache, *prepared);
  if (!s.ok()) return s;
  return std::unique_ptr<const Block>(new Block(spec, device, std::move(prepared)));
}

size_t Block::weight_bytes() const { return prepared_->bytes; }

std::vector<BlockTensor> Block::Inputs(const BlockSpec& spec) {
  return EntryOf(spec.kind).inputs(spec);
}
std::vector<BlockTensor> Block::Outputs(const BlockSpec& spec) {
  return EntryOf(spec.kind).outputs(spec);
}
std::string Block::Formula(const BlockSpec& spec) { return EntryOf(spec.kind).formula(spec); }

size_t Block::WorkspaceBytes(int64_t rows) const {
  return EntryOf(spec_.kind).workspace(spec_, *prepared_, rows);
}

absl::Status Block::Run(const ExecutionContext& context, absl::Span<const ConstTensorView> inputs,
                        absl::Span<const TensorView> outputs,
                        absl::Span<std::byte> workspace) const {
  if (context.device != device_) {
    return absl::InvalidArgumentError(absl::StrCat("expected to run on ", DeviceName(device_),
                                                   ", got ", DeviceName(context.device)));
  }
  if (inputs.size() != prepared_->inputs.size() || outputs.size() != prepared_->outputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", prepared_->inputs.size(), " inputs and ", prepared_->outputs.size(),
        " outputs, got ", inputs.size(), " and ", outputs.size()));
  }
  const int64_t rows = inputs[0].rank == 0 ? 0 : inputs[0].shape[0];
  absl::Status s = CheckTensors(*prepared_, device_, rows, inputs, outputs);
  if (!s.ok()) return s;
  const size_t needed = WorkspaceBytes(rows);
  FUSEBLOCK_RETURN_IF_ERROR(CheckWorkspace(workspace, needed));
  if (rows == 0) return absl::OkStatus();
  return EntryOf(spec_.kind)
      .run({context, spec_, *prepared_, rows, inputs, outputs, workspace.first(needed)});
}

}  // namespace fuseblock
