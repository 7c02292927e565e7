#include "server/engine/batch.h"

#include <cstring>

#include "kernels/embedding/embedding.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

void CopyPieces(const InputPayload& payload, std::byte* to) {
  for (const absl::Span<const std::byte> piece : payload.pieces) {
    if (piece.empty()) continue;
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
}

// The ids lie on the host only now; on the device nobody could read them back in time.
absl::Status CheckIds(const Batch& batch, std::byte* ids, int64_t tokens) {
  if (batch.block->kind != BlockKind::kEmbedding) return absl::OkStatus();
  const DType dtype = batch.block->InputDType(batch.form, 0);
  absl::Status status = CheckEmbeddingIds(ids, dtype, tokens, batch.block->vocabulary);
  if (status.ok()) return status;
  std::memset(ids, 0, static_cast<size_t>(tokens) * SizeOf(dtype));
  return MakeError(Reason::kBadTensor,
                   std::string_view(status.message().data(), status.message().size()));
}

ConstTensorView RowsView(const BlockTensor& tensor, const void* data, DType dtype, int64_t rows) {
  if (tensor.columns == 0) return ConstTensorView(data, dtype, {rows});
  return ConstTensorView(data, dtype, {rows, tensor.columns});
}

}  // namespace

void Batch::Clear() {
  entries.clear();
  first_row.clear();
  status.clear();
  run = LaneBatch();
}

void Gather(Batch& batch, std::byte* staging_in, std::byte* staging_out) {
  BatchQueue& queue = *batch.entries.front()->queue;
  EngineBlock& block = *queue.block();
  batch.block = &block;
  batch.form = queue.form();
  LaneBatch& run = batch.run;
  run.input_count = block.inputs.size();
  run.output_count = block.outputs.size();
  for (const auto& entry : batch.entries) {
    batch.first_row.push_back(run.rows);
    run.rows += entry->request.tokens;
  }
  batch.status.resize(batch.entries.size());

  std::byte* to = staging_in;
  for (size_t i = 0; i < run.input_count; ++i) {
    if (!block.HasInput(batch.form, i)) continue;
    const size_t row_bytes = block.InputRowBytes(batch.form, i);
    for (size_t e = 0; e < batch.entries.size(); ++e) {
      const Request& request = batch.entries[e]->request;
      std::byte* rows = to + static_cast<size_t>(batch.first_row[e]) * row_bytes;
      CopyPieces(request.inputs[i], rows);
      if (i == 0) batch.status[e] = CheckIds(batch, rows, request.tokens);
    }
    run.inputs[i] = RowsView(block.inputs[i], to, block.InputDType(batch.form, i), run.rows);
    to += AlignTensor(static_cast<size_t>(run.rows) * row_bytes);
  }
  for (const auto& entry : batch.entries) {
    for (InputPayload& payload : entry->request.inputs) payload.pieces.clear();
    entry->request.payload.reset();
  }
  for (size_t o = 0; o < run.output_count; ++o) {
    if (!block.HasOutput(batch.form, o)) continue;
    const BlockTensor& tensor = block.outputs[o];
    run.outputs[o] = TensorView(staging_out, tensor.dtypes[0], {run.rows, tensor.columns});
    staging_out += AlignTensor(static_cast<size_t>(run.rows) * block.OutputRowBytes(o));
  }
}

absl::Span<const std::byte> OutputOf(const Batch& batch, size_t entry, size_t output) {
  const auto* data = static_cast<const std::byte*>(batch.run.outputs[output].data);
  if (data == nullptr) return {};
  const size_t row_bytes = batch.block->OutputRowBytes(output);
  const size_t rows = static_cast<size_t>(batch.entries[entry]->request.tokens);
  return {data + static_cast<size_t>(batch.first_row[entry]) * row_bytes, rows * row_bytes};
}

}  // namespace fuseblock
