// The lookup, element by element; the scaled product in FP64, rounded once.
#include "kernels/base/reference.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/ids.h"

namespace fuseblock {

absl::Status EmbeddingReference(const ExecutionContext&, const EmbeddingArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t from = ReadId(args.ids, args.ids_dtype, i) * args.table.stride;
    for (int64_t col = 0; col < args.y.cols; ++col) {
      const double value = ReadDouble(args.table.data, args.dtype, from + col);
      WriteDouble(args.y.data, args.dtype, i * args.y.stride + col, value * args.scale);
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
