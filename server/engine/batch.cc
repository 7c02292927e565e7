#include "server/engine/batch.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/ceil_div.h"
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

// Less is copied sooner than another thread is woken.
constexpr int64_t kShareBytes = 256 << 10;

// Copies the rows [begin, end) of the batch, of one input, to where all of its rows lie.
void CopyRows(const Batch& batch, size_t input, int64_t begin, int64_t end, std::byte* to) {
  const size_t row_bytes = batch.block->InputRowBytes(batch.form, input);
  const auto after = std::upper_bound(batch.first_row.begin(), batch.first_row.end(), begin);
  for (size_t p = static_cast<size_t>(after - batch.first_row.begin()) - 1;
       p < batch.parts.size() && batch.first_row[p] < end; ++p) {
    const Part& part = batch.parts[p];
    const int64_t from = std::max<int64_t>(begin - batch.first_row[p], 0);
    const int64_t until = std::min(end - batch.first_row[p], part.rows);
    if (from >= until) continue;
    CopyPieces(part.entry->request.inputs[input],
               static_cast<size_t>(part.first_row + from) * row_bytes,
               static_cast<size_t>(until - from) * row_bytes,
               to + static_cast<size_t>(batch.first_row[p] + from) * row_bytes);
  }
}

// The ids lie on the host only now; on the device nobody could read them back in time.
absl::Status CheckIds(const Batch& batch, std::byte* ids, const Part& part) {
  if (batch.block->kind != BlockKind::kEmbedding) return absl::OkStatus();
  const DType dtype = batch.block->InputDType(batch.form, 0);
  absl::Status status = CheckEmbeddingIds(ids, dtype, part.rows, batch.block->vocabulary,
                                          std::nullopt, part.first_row);
  if (status.ok()) return status;
  std::memset(ids, 0, static_cast<size_t>(part.rows) * SizeOf(dtype));
  return MakeError(Reason::kBadTensor, std::string(status.message()));
}

// Lays the parts side by side; returns how many rows they are.
int64_t SetRows(Batch& batch) {
  int64_t rows = 0;
  batch.first_row.clear();
  for (const Part& part : batch.parts) {
    batch.first_row.push_back(rows);
    rows += part.rows;
  }
  return rows;
}

// Where the input's rows lie: in a lane's own staging, which is writable.
std::byte* GatheredTo(const Batch& batch, size_t input) {
  return static_cast<std::byte*>(const_cast<void*>(batch.run.inputs[input].data));
}

}  // namespace

int64_t Batch::requests() const {
  return std::count_if(parts.begin(), parts.end(),
                       [](const Part& part) { return part.first_row == 0; });
}

Parts Batch::KeepOnly(const std::vector<bool>& keep) {
  Parts left_out;
  size_t kept = 0;
  for (size_t p = 0; p < keep.size(); ++p) {
    if (!keep[p]) {
      left_out.push_back(std::move(parts[p]));
      continue;
    }
    if (kept != p) {
      parts[kept] = std::move(parts[p]);
      first_row[kept] = first_row[p];
      status[kept] = std::move(status[p]);
    }
    ++kept;
  }
  parts.resize(kept);
  first_row.resize(kept);
  status.resize(kept);
  return left_out;
}

void Batch::Clear() {
  parts.clear();
  first_row.clear();
  status.clear();
  run = LaneBatch();
}

void Gather(Batch& batch, std::byte* staging_in, std::byte* staging_out,
            const ParallelFor& parallel_for) {
  BatchQueue& queue = *batch.parts.front().entry->queue;
  EngineBlock& block = *queue.block();
  batch.block = &block;
  batch.form = queue.form();
  const int64_t rows = SetRows(batch);
  batch.status.resize(batch.parts.size());
  batch.run = block.LayOut(batch.form, rows, staging_in, staging_out);

  for (size_t i = 0; i < batch.run.input_count; ++i) {
    if (!block.HasInput(batch.form, i)) continue;
    std::byte* to = GatheredTo(batch, i);
    const auto row_bytes = static_cast<int64_t>(block.InputRowBytes(batch.form, i));
    const int64_t share = CeilDiv(kShareBytes, row_bytes);
    parallel_for(CeilDiv(rows, share), [&](int64_t task) {
      CopyRows(batch, i, task * share, std::min(rows, (task + 1) * share), to);
    });
    if (i > 0) continue;
    for (size_t p = 0; p < batch.parts.size(); ++p) {
      batch.status[p] = CheckIds(batch, to + batch.first_row[p] * row_bytes, batch.parts[p]);
    }
  }
  for (const Part& part : batch.parts) {
    if (!part.whole()) continue;
    for (InputPayload& payload : part.entry->request.inputs) payload.pieces.clear();
    part.entry->request.payload.reset();
  }
}

void GatherAgain(Batch& batch, std::byte* staging_in, std::byte* staging_out) {
  const LaneBatch before = batch.run;
  const std::vector<int64_t> first_row_before = std::move(batch.first_row);
  const int64_t rows = SetRows(batch);
  batch.run = batch.block->LayOut(batch.form, rows, staging_in, staging_out);
  for (size_t i = 0; i < batch.run.input_count; ++i) {
    if (!batch.block->HasInput(batch.form, i)) continue;
    const auto* from = static_cast<const std::byte*>(before.inputs[i].data);
    std::byte* to = GatheredTo(batch, i);
    const size_t row_bytes = batch.block->InputRowBytes(batch.form, i);
    for (size_t p = 0; p < batch.parts.size(); ++p) {
      std::memcpy(to + static_cast<size_t>(batch.first_row[p]) * row_bytes,
                  from + static_cast<size_t>(first_row_before[p]) * row_bytes,
                  static_cast<size_t>(batch.parts[p].rows) * row_bytes);
    }
  }
}

absl::Span<const std::byte> OutputOf(const Batch& batch, size_t part, size_t output) {
  const auto* data = static_cast<const std::byte*>(batch.run.outputs[output].data);
  if (data == nullptr) return {};
  const size_t row_bytes = batch.block->OutputRowBytes(output);
  const size_t rows = static_cast<size_t>(batch.parts[part].rows);
  return {data + static_cast<size_t>(batch.first_row[part]) * row_bytes, rows * row_bytes};
}

}  // namespace fuseblock
