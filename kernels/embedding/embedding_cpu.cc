// The embedding lookup on the CPU: rows are copied, or scaled in FP32 by vectors.
#include "kernels/base/split.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/ids.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/embedding/embedding_cpu.cc"
#include "hwy/foreach_target.h"
#include "kernels/base/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fuseblock {
namespace HWY_NAMESPACE {
namespace {

struct ScaleFunction {
  VF scale;
  HWY_INLINE VF operator()(VF x) const { return hn::Mul(x, scale); }
};

}  // namespace

void ScaleRow(const void* from, void* to, DType dtype, int64_t columns, float scale) {
  VisitFloat(dtype, [&](auto type) {
    using T = decltype(type);
    Map(columns, ScaleFunction{hn::Set(DF(), scale)}, static_cast<T*>(to),
        static_cast<const T*>(from));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fuseblock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fuseblock {

HWY_EXPORT(ScaleRow);

absl::Status EmbeddingHighway(const ExecutionContext& context, const EmbeddingArgs& args) {
  const int64_t size = SizeOf(args.dtype);
  const auto* table = static_cast<const std::byte*>(args.table.data);
  auto* out = static_cast<std::byte*>(args.y.data);
  ForRanges(context.parallel_for, args.count, 2 * args.y.cols * size,
            [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                const int64_t id = ReadId(args.ids, args.ids_dtype, i);
                std::byte* to = out + i * args.y.stride * size;
                if (id == args.padding_id) {
                  std::memset(to, 0, static_cast<size_t>(args.y.cols * size));
                  continue;
                }
                const std::byte* from = table + id * args.table.stride * size;
                if (args.scale == 1.0f) {
                  std::memcpy(to, from, static_cast<size_t>(args.y.cols * size));
                } else {
                  HWY_DYNAMIC_DISPATCH(ScaleRow)(from, to, args.dtype, args.y.cols, args.scale);
                }
              }
            });
  return absl::OkStatus();
}

}  // namespace fuseblock
#endif  // HWY_ONCE
