// The CUDA launcher of softmax_masked (softmax_masked.h).
#include "kernels/base/softmax.cuh"
#include "kernels/softmax_masked/softmax_masked_cuda.h"

namespace fuseblock {
namespace {

// x + mask.
template <typename X, typename M>
struct MaskedSource {
  static constexpr int kUnit = 16 / sizeof(X);
  struct Raw {
    Unit<X, kUnit> x;
    Unit<M, kUnit> mask;
  };

  const X* x;
  const M* mask;
  int64_t x_stride, mask_stride;

  __device__ void SetRow(int64_t row) {
    x += row * x_stride;
    mask += row * mask_stride;
  }
  template <bool kVector, typename Left>
  __device__ void Load(Raw& raw, int64_t col, Left left, float fill) const {
    raw.x.template LoadOrFill<kVector>(x + col, left, fill);
    raw.mask.template LoadOrFill<kVector>(mask + col, left, 0.0f);
  }
  __device__ void Values(const Raw& raw, float (&h)[kUnit]) const {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) h[i] = ToFloat(raw.x.v[i]) + ToFloat(raw.mask.v[i]);
  }
  template <bool kVector, typename Left>
  __device__ void Store(const float (&)[kUnit], int64_t, Left) const {}
};

}  // namespace

int LaunchSoftmaxMasked(const FuseblockCudaRows* x, const FuseblockCudaRows* mask,
                        const FuseblockCudaRows* y, void* stream) {
  const bool aligned = Aligned16(*x) && Aligned16(*y) && (mask == nullptr || Aligned16(*mask));
  return VisitCudaFloat(y->dtype, [&](auto out) {
    return VisitSameOrFloat(out, y->dtype, x->dtype, [&](auto in) {
      using X = decltype(in);
      using Y = decltype(out);
      const SoftmaxPolicy<Y, true> policy{static_cast<Y*>(y->data), y->stride};
      const auto* x_data = static_cast<const X*>(x->data);
      const auto launch = [&](const auto& source) {
        return LaunchRows({y->rows, y->cols}, aligned, source, policy,
                          static_cast<cudaStream_t>(stream));
      };
      if (mask == nullptr) return launch(PlainSource<X>{x_data, x->stride});
      return VisitSameOrFloat(out, y->dtype, mask->dtype, [&](auto m) {
        using M = decltype(m);
        return launch(
            MaskedSource<X, M>{x_data, static_cast<const M*>(mask->data), x->stride, mask->stride});
      });
    });
  });
}

}  // namespace fuseblock
