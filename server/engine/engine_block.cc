#include "server/engine/engine_block.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/buckets.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

std::vector<bool> NotNull(const std::vector<const Block*>& blocks) {
  std::vector<bool> has;
  has.reserve(blocks.size());
  for (const Block* block : blocks) has.push_back(block != nullptr);
  return has;
}

std::string DTypeNames(const std::vector<DType>& dtypes) {
  return absl::StrJoin(dtypes, " or ",
                       [](std::string* out, DType dtype) { out->append(Name(dtype)); });
}

ConstTensorView RowsView(const BlockTensor& tensor, const void* data, DType dtype, int64_t rows) {
  if (tensor.columns == 0) return ConstTensorView(data, dtype, {rows});
  return ConstTensorView(data, dtype, {rows, tensor.columns});
}

int64_t Elements(const BlockTensor& tensor) { return std::max<int64_t>(tensor.columns, 1); }

}  // namespace

EngineBlock::EngineBlock(const ServedBlock& served, std::vector<const Block*> on_device_in,
                         int64_t batch_tokens_max, const std::shared_ptr<BudgetAccount>& budget,
                         BlockMetrics* metrics_in, std::shared_ptr<HeldWeights> held)
    : name(served.name),
      kind(served.spec.kind),
      vocabulary(served.spec.vocabulary),
      inputs(served.inputs),
      outputs(served.outputs),
      on_device(std::move(on_device_in)),
      has(NotNull(on_device)),
      metrics(metrics_in),
      costs(on_device.size()),
      queues{BatchQueue(batch_tokens_max, this, 0, budget),
             BatchQueue(batch_tokens_max, this, 1, budget),
             BatchQueue(batch_tokens_max, this, 2, budget),
             BatchQueue(batch_tokens_max, this, 3, budget)},
      held_(std::move(held)) {
  for (const auto& block : served.blocks) {
    weights_.push_back(std::make_shared<CountedWeights>(block, metrics));
  }
  for (size_t i = 0; i < on_device.size(); ++i) {
    const auto weights = std::find_if(weights_.begin(), weights_.end(), [&](const auto& one) {
      return &one->block() == on_device[i];
    });
    on_devices_.push_back(weights == weights_.end() ? nullptr : *weights);
    if (on_devices_[i] != nullptr) held_->Take(i, *on_devices_[i]);
  }
}

EngineBlock::~EngineBlock() {
  weights_.clear();
  graphs.resize(on_devices_.size());
  for (size_t i = 0; i < on_devices_.size(); ++i) {
    if (on_devices_[i] == nullptr) continue;
    held_->LetGo(i, {std::move(on_devices_[i]), std::move(graphs[i])});
  }
}

absl::StatusOr<int> EngineBlock::FormOf(const Request& request) const {
  int form = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputPayload& payload = request.inputs[i];
    if (!payload.present) {
      if (inputs[i].optional) continue;
      return MakeError(Reason::kBadTensor, absl::StrCat(inputs[i].name, ": missing"));
    }
    if (inputs[i].optional) form |= kFormWithOptional;
    const auto& dtypes = inputs[i].dtypes;
    const auto dtype = std::find(dtypes.begin(), dtypes.end(), payload.dtype);
    if (dtype == dtypes.end()) {
      return MakeError(Reason::kBadTensor,
                       absl::StrCat(inputs[i].name, ": expected ", DTypeNames(dtypes), ", got ",
                                    std::string(Name(payload.dtype))));
    }
    if (i == 0 && dtype != dtypes.begin()) form |= kFormSecondDType;
    uint64_t bytes = 0;
    for (const absl::Span<const std::byte> piece : payload.pieces) bytes += piece.size();
    const uint64_t row_bytes = static_cast<uint64_t>(Elements(inputs[i])) * SizeOf(payload.dtype);
    if (request.tokens < 0 || bytes / row_bytes != static_cast<uint64_t>(request.tokens) ||
        bytes % row_bytes != 0) {
      return MakeError(Reason::kBadTensor,
                       absl::StrCat(inputs[i].name, ": expected ", request.tokens, " x ", row_bytes,
                                    " bytes, got ", bytes));
    }
  }
  return form;
}

size_t EngineBlock::PreferredDevice() const {
  return static_cast<size_t>(std::find(has.begin(), has.end(), true) - has.begin());
}

bool EngineBlock::HasInput(int form, size_t input) const {
  return !inputs[input].optional || (form & kFormWithOptional) != 0;
}

bool EngineBlock::HasOutput(int form, size_t output) const {
  return !outputs[output].optional || (form & kFormWithOptional) != 0;
}

DType EngineBlock::InputDType(int form, size_t input) const {
  return inputs[input].dtypes[input == 0 && (form & kFormSecondDType) != 0 ? 1 : 0];
}

size_t EngineBlock::InputRowBytes(int form, size_t input) const {
  if (!HasInput(form, input)) return 0;
  return static_cast<size_t>(Elements(inputs[input])) * SizeOf(InputDType(form, input));
}

size_t EngineBlock::OutputRowBytes(size_t output) const {
  return static_cast<size_t>(Elements(outputs[output])) * SizeOf(outputs[output].dtypes[0]);
}

size_t EngineBlock::OutputBytes(int form, int64_t rows) const {
  size_t bytes = 0;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (HasOutput(form, o)) bytes += AlignTensor(static_cast<size_t>(rows) * OutputRowBytes(o));
  }
  return bytes;
}

size_t EngineBlock::RowBytes(int form) const {
  size_t bytes = 0;
  for (size_t i = 0; i < inputs.size(); ++i) bytes += InputRowBytes(form, i);
  for (size_t o = 0; o < outputs.size(); ++o) bytes += HasOutput(form, o) ? OutputRowBytes(o) : 0;
  return bytes;
}

bool HasForm(const std::vector<BlockTensor>& inputs, int form) {
  const auto optional = [](const BlockTensor& input) { return input.optional; };
  const bool may_have_optional = std::any_of(inputs.begin(), inputs.end(), optional);
  return ((form & kFormWithOptional) == 0 || may_have_optional) &&
         ((form & kFormSecondDType) == 0 || inputs[0].dtypes.size() > 1);
}

LaneBatch EngineBlock::LayOut(int form, int64_t rows, std::byte* staging_in,
                              std::byte* staging_out) const {
  LaneBatch batch;
  batch.form = form;
  batch.rows = rows;
  batch.input_count = inputs.size();
  batch.output_count = outputs.size();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!HasInput(form, i)) continue;
    batch.inputs[i] = RowsView(inputs[i], staging_in, InputDType(form, i), rows);
    staging_in += AlignTensor(static_cast<size_t>(rows) * InputRowBytes(form, i));
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!HasOutput(form, o)) continue;
    batch.outputs[o] = TensorView(staging_out, outputs[o].dtypes[0], {rows, outputs[o].columns});
    staging_out += AlignTensor(static_cast<size_t>(rows) * OutputRowBytes(o));
  }
  return batch;
}

LaneBytes EngineBlock::BytesNeeded(size_t device, int64_t rows) const {
  const auto needed = [&](int64_t of_rows) {
    LaneBytes bytes;
    for (size_t i = 0; i < inputs.size(); ++i) {
      // The widest dtype, and the optional input too.
      int size = 0;
      for (const DType dtype : inputs[i].dtypes) size = std::max(size, SizeOf(dtype));
      bytes.inputs += AlignTensor(static_cast<size_t>(of_rows * Elements(inputs[i]) * size));
    }
    bytes.outputs = OutputBytes(kFormWithOptional, of_rows);
    bytes.workspace = on_device[device]->WorkspaceBytes(of_rows);
    return bytes;
  };
  LaneBytes bytes = needed(rows);
  const LaneBytes bucket = needed(kTokenBuckets[BucketsUpTo(rows) - 1]);
  bytes.captured = bucket.inputs + bucket.outputs + bucket.workspace;
  return bytes;
}

}  // namespace fuseblock
