// The reference product: FP64 sums over the unpacked panels, one rounding at the end.
#include <cstring>

#include "kernels/base/reference_math.h"
#include "kernels/linear/linear_packed.h"

namespace fuseblock {
namespace {

template <typename T>
T LoadElement(const void* row, int64_t column) {  // the row may lie at any address
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(row) + column * sizeof(T), sizeof(T));
  return value;
}

double Finished(LinearEpilogue epilogue, double sum) {
  switch (epilogue) {
    case LinearEpilogue::kGeluErf:
      return GeluErfFp64(sum);
    case LinearEpilogue::kGeluTanh:
      return GeluTanhFp64(sum);
    default:
      return sum;
  }
}

template <typename T, typename Y>
void ReferenceRow(const LinearWeight::Packed& packed, LinearEpilogue epilogue, const void* x,
                  void* y) {
  for (int64_t n = 0; n < packed.n; ++n) {
    double sum = 0;
    for (int64_t k = 0; k < packed.k; ++k) {
      sum += static_cast<double>(ToFloat(LoadElement<T>(x, k))) *
             static_cast<double>(PanelValue<T>(packed, n, k));
    }
    if (packed.bias.size() != 0) sum += static_cast<double>(packed.bias_data()[n]);
    const Y value = FromDouble<Y>(Finished(epilogue, sum));
    std::memcpy(static_cast<std::byte*>(y) + n * sizeof(Y), &value, sizeof(Y));
  }
}

}  // namespace

absl::Status LinearReference(const ExecutionContext& context, const LinearArgs& args) {
  const LinearWeight::Packed& packed = args.weight->packed();
  VisitFloat(packed.dtype, [&](auto t) {
    VisitFloat(args.y_dtype, [&](auto y) {
      context.parallel_for(args.x.rows, [&](int64_t row) {
        ReferenceRow<decltype(t), decltype(y)>(
            packed, args.epilogue,
            static_cast<const std::byte*>(args.x.data) + row * args.x.stride * sizeof(t),
            static_cast<std::byte*>(args.y.data) + row * args.y.stride * sizeof(y));
      });
    });
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
