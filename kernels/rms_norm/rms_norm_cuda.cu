// The CUDA launcher of rms_norm (rms_norm.h).
#include "kernels/base/rms_rows.cuh"
#include "kernels/rms_norm/rms_norm_cuda.h"

namespace fuseblock {
namespace {

// The rows of x themselves.
template <typename X>
struct PlainSource {
  static constexpr int kUnit = 16 / sizeof(X);
  using Raw = Unit<X, kUnit>;

  const X* x;
  int64_t stride;

  __device__ void SetRow(int64_t row) { x += row * stride; }
  __device__ void LoadAligned(Raw& raw, int64_t col) const { raw.LoadAligned(x + col); }
  __device__ void LoadSome(Raw& raw, int64_t col, int64_t left) const {
    raw.LoadSome(x + col, left);
  }
  __device__ void Values(const Raw& raw, float (&h)[kUnit]) const {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) h[i] = ToFloat(raw.v[i]);
  }
  __device__ void Store(const float (&)[kUnit], int64_t, int64_t, bool) const {}
};

}  // namespace

int LaunchRmsNorm(const FuseblockCudaRows* x, const void* weight, int weight_dtype, float eps,
                  float weight_offset, int normalised_first, const FuseblockCudaRows* y,
                  void* stream) {
  if (weight == nullptr) weight_dtype = y->dtype;
  return VisitCudaFloat(y->dtype, [&](auto out) {
    return VisitSameOrFloat(out, y->dtype, x->dtype, [&](auto in) {
      return VisitSameOrFloat(out, y->dtype, weight_dtype, [&](auto w) {
        using Source = PlainSource<decltype(in)>;
        RmsRowsParams p{x->rows, x->cols, y->stride, eps, weight_offset, normalised_first != 0};
        p.vector = Aligned16(*x) && Aligned16(*y) && Aligned16(weight, 1, 0, 1) &&
                   x->cols % Source::kUnit == 0;
        const Source source{static_cast<decltype(in)*>(x->data), x->stride};
        return LaunchRmsRows(p, source, static_cast<const decltype(w)*>(weight),
                             static_cast<decltype(out)*>(y->data),
                             static_cast<cudaStream_t>(stream));
      });
    });
  });
}

}  // namespace fuseblock
