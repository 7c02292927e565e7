// y[i, :] = table[ids[i], :]: the embedding lookup.
//
// ids: any shape, contiguous, INT32 or INT64. table: [V, H] with contiguous rows, FP32, FP16 or
// BF16. y: ids' elements as rows, [.., H], table's dtype, last axis contiguous, not overlapping the
// table. scale: a factor in FP32, rounded once after the product (Gemma); 1 copies the bits.
// padding_id: an id that gives a row of zeros and need not lie in the vocabulary (-1 will do).
// Offsets are 64-bit: V * H > 2^31 is ordinary. Zero ids: OK.
// Operands stay the caller's and are not kept once the kernel has finished. Errors:
// INVALID_ARGUMENT for shapes and dtypes; OUT_OF_RANGE "ids[17]: expected 0 <= id < 49152, got
// 50000" for the first bad id, and nothing is written. On CUDA the ids lie on the device and are
// not read back: the caller checks them on the host with CheckEmbeddingIds before it copies them.
//
// Example:  table [[1, 2], [3, 4]], ids [1, 0] -> [[3, 4], [1, 2]]
// Smallest: V = H = 1. Boundary: id V - 1; padding_id 1 with the ids above -> [[0, 0], [1, 2]].
// Invalid: id -1; id V.
// Source: Bengio et al., 2003, https://www.jmlr.org/papers/v3/bengio03a.html.
#pragma once

#include <optional>

#include "kernels/base/implementation.h"

namespace fuseblock {

struct EmbeddingArgs {
  const void* ids;
  DType ids_dtype;
  int64_t count;
  ConstRows table;
  Rows y;
  DType dtype;
  float scale;
  std::optional<int64_t> padding_id;
};

absl::Span<const Implementation<EmbeddingArgs>> EmbeddingImplementations();

// OK when every id is in [0, vocabulary) or the padding id. ids: host memory, contiguous, INT32 or
// INT64; need not be aligned. first: how the error calls the first of them, where they are a piece
// of a longer list.
absl::Status CheckEmbeddingIds(const void* ids, DType ids_dtype, int64_t count, int64_t vocabulary,
                               std::optional<int64_t> padding_id = std::nullopt, int64_t first = 0);

absl::StatusOr<EmbeddingArgs> CheckEmbedding(const ConstTensorView& ids,
                                             const ConstTensorView& table, float scale,
                                             const TensorView& y,
                                             std::optional<int64_t> padding_id = std::nullopt);
absl::Status Embedding(const ExecutionContext& context, const ConstTensorView& ids,
                       const ConstTensorView& table, float scale, const TensorView& y,
                       std::optional<int64_t> padding_id = std::nullopt);

}  // namespace fuseblock
