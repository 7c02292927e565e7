#include "server/engine/batch.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/embedding/embedding.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// Copies `bytes` of the payload from offset `from` on.
void CopyPieces(const InputPayload& payload, size_t from, size_t bytes, std::byte* to) {
  for (absl::Span<const std::byte> piece : payload.pieces) {
    if (from >= piece.size()) {
      from -= piece.size();
      continue;
    }
    piece = piece.subspan(from, bytes);
    from = 0;
    if (piece.empty()) return;
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
    bytes -= piece.size();
  }
}

// The ids lie on the host only now; on the device nobody could read them back in time.
absl::Status CheckIds(const Batch& batch, std::byte* ids, const Part& part) {
  if (batch.block->kind != BlockKind::kEmbedding) return absl::OkStatus();
  const DType dtype = batch.block->InputDType(batch.form, 0);
  absl::Status status = CheckEmbeddingIds(ids, dtype, part.rows, batch.block->vocabulary);
  if (status.ok()) return status;
  std::memset(ids, 0, static_cast<size_t>(part.rows) * SizeOf(dtype));
  std::string message(status.message());
  if (part.first_row > 0) {
    absl::StrAppend(&message, ", counted from token ", part.first_row, ", where a chunk begins");
  }
  return MakeError(Reason::kBadTensor, message);
}

}  // namespace

int64_t Batch::requests() const {
  return std::count_if(parts.begin(), parts.end(),
                       [](const Part& part) { return part.first_row == 0; });
}

void Batch::Clear() {
  parts.clear();
  first_row.clear();
  status.clear();
  run = LaneBatch();
}

void Gather(Batch& batch, std::byte* staging_in, std::byte* staging_out) {
  BatchQueue& queue = *batch.parts.front().entry->queue;
  EngineBlock& block = *queue.block();
  batch.block = &block;
  batch.form = queue.form();
  int64_t rows = 0;
  for (const Part& part : batch.parts) {
    batch.first_row.push_back(rows);
    rows += part.rows;
  }
  batch.status.resize(batch.parts.size());
  batch.run = block.LayOut(batch.form, rows, staging_in, staging_out);

  for (size_t i = 0; i < batch.run.input_count; ++i) {
    if (!block.HasInput(batch.form, i)) continue;
    // The lane's own staging: writable.
    auto* to = static_cast<std::byte*>(const_cast<void*>(batch.run.inputs[i].data));
    const size_t row_bytes = block.InputRowBytes(batch.form, i);
    for (size_t p = 0; p < batch.parts.size(); ++p) {
      const Part& part = batch.parts[p];
      std::byte* first = to + static_cast<size_t>(batch.first_row[p]) * row_bytes;
      CopyPieces(part.entry->request.inputs[i], static_cast<size_t>(part.first_row) * row_bytes,
                 static_cast<size_t>(part.rows) * row_bytes, first);
      if (i == 0) batch.status[p] = CheckIds(batch, first, part);
    }
  }
  for (const Part& part : batch.parts) {
    if (!part.whole()) continue;
    for (InputPayload& payload : part.entry->request.inputs) payload.pieces.clear();
    part.entry->request.payload.reset();
  }
}

void PlaceOutputs(Batch& batch, std::byte* staging_out) {
  // The inputs stay where they were gathered.
  batch.run.outputs =
      batch.block->LayOut(batch.form, batch.run.rows, staging_out, staging_out).outputs;
}

absl::Span<const std::byte> OutputOf(const Batch& batch, size_t part, size_t output) {
  const auto* data = static_cast<const std::byte*>(batch.run.outputs[output].data);
  if (data == nullptr) return {};
  const size_t row_bytes = batch.block->OutputRowBytes(output);
  const size_t rows = static_cast<size_t>(batch.parts[part].rows);
  return {data + static_cast<size_t>(batch.first_row[part]) * row_bytes, rows * row_bytes};
}

}  // namespace fuseblock
