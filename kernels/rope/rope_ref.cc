// The rotation in FP64, rounded once; what does not turn is copied bit for bit.
#include <cmath>
#include <cstring>

#include "kernels/base/reference.h"
#include "kernels/rope/positions.h"
#include "kernels/rope/rope.h"

namespace fuseblock {
namespace {

void TurnHead(const RopeArgs& args, double position, const void* in, int64_t in_at, void* out,
              int64_t out_at) {
  const std::vector<double>& frequencies = args.table->inverse_frequencies();
  const int64_t half = args.table->rotary_dims() / 2;
  for (int64_t pair = 0; pair < half; ++pair) {
    const double angle = position * frequencies[static_cast<size_t>(pair)];
    const double cosine = args.table->attention_factor() * std::cos(angle);
    const double sine = args.table->attention_factor() * std::sin(angle);
    const bool halves = args.pairs == RopePairs::kHalves;
    const int64_t first = halves ? pair : 2 * pair;
    const int64_t second = halves ? pair + half : 2 * pair + 1;
    const double a = ReadDouble(in, args.dtype, in_at + first);
    const double b = ReadDouble(in, args.dtype, in_at + second);
    WriteDouble(out, args.dtype, out_at + first, a * cosine - b * sine);
    WriteDouble(out, args.dtype, out_at + second, b * cosine + a * sine);
  }
  const int64_t size = SizeOf(args.dtype), rest = args.head_dim - 2 * half;
  std::memmove(static_cast<std::byte*>(out) + (out_at + 2 * half) * size,
               static_cast<const std::byte*>(in) + (in_at + 2 * half) * size,
               static_cast<size_t>(rest * size));
}

}  // namespace

absl::Status RopeReference(const ExecutionContext&, const RopeArgs& args) {
  for (int64_t token = 0; token < args.tokens; ++token) {
    const double position = static_cast<double>(ReadPosition(args.positions, token));
    for (const RopeHeads* heads : {&args.q, &args.k}) {
      for (int64_t head = 0; head < heads->heads; ++head) {
        TurnHead(args, position, heads->in,
                 token * heads->in_token_stride + head * heads->in_head_stride, heads->out,
                 token * heads->out_token_stride + head * heads->out_head_stride);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
