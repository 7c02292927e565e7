// The lookup, element by element: the bits, or the scaled product in FP64, rounded once.
#include <cstring>

#include "kernels/base/reference.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/ids.h"

namespace fuseblock {
namespace {

void CopyElement(const void* from, int64_t from_index, void* to, int64_t to_index, int64_t size) {
  std::memcpy(static_cast<std::byte*>(to) + to_index * size,
              static_cast<const std::byte*>(from) + from_index * size, static_cast<size_t>(size));
}

}  // namespace

absl::Status EmbeddingReference(const ExecutionContext&, const EmbeddingArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t id = ReadId(args.ids, args.ids_dtype, i);
    const int64_t from = id * args.table.stride;
    for (int64_t col = 0; col < args.y.cols; ++col) {
      if (id == args.padding_id) {
        WriteDouble(args.y.data, args.dtype, i * args.y.stride + col, 0.0);
      } else if (args.scale == 1.0f) {
        CopyElement(args.table.data, from + col, args.y.data, i * args.y.stride + col,
                    SizeOf(args.dtype));
      } else {
        const double value = ReadDouble(args.table.data, args.dtype, from + col);
        WriteDouble(args.y.data, args.dtype, i * args.y.stride + col, value * args.scale);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
