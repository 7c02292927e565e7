// The reference feed-forward: FP64 throughout, rounded only where the rounding mode stores a
// tensor.
#include "kernels/mlp_swiglu/mlp_swiglu_ref.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/linear/linear_packed.h"

namespace fuseblock {
namespace {

template <typename T>
double Round(double value) {
  return static_cast<double>(ToFloat(FromDouble<T>(value)));
}

template <typename T>
double Product(const LinearWeight::Packed& packed, int64_t row, const std::vector<double>& x) {
  double sum = 0;
  for (int64_t k = 0; k < packed.k; ++k) {
    sum += x[static_cast<size_t>(k)] * static_cast<double>(PanelValue<T>(packed, row, k));
  }
  if (packed.bias.size() != 0) sum += static_cast<double>(packed.bias_data()[row]);
  return sum;
}

template <typename T>
double Gated(double gate, double up, bool hf) {
  if (hf) {
    gate = Round<T>(gate);
    up = Round<T>(up);
  }
  // silu(-inf) is -0, not -inf * 0.
  double silu = gate == -HUGE_VAL ? -0.0 : gate / (1.0 + std::exp(-gate));
  if (hf) silu = Round<T>(silu);
  return Round<T>(silu * up);
}

template <typename T, typename Y>
void ReferenceRow(const MlpSwiGluWeights& weights, bool hf, const std::byte* x, std::byte* y) {
  std::vector<double> input(static_cast<size_t>(weights.gate.k()));
  for (size_t i = 0; i < input.size(); ++i) {
    T value;
    std::memcpy(&value, x + i * sizeof(T), sizeof(T));
    input[i] = static_cast<double>(ToFloat(value));
  }
  std::vector<double> gated(static_cast<size_t>(weights.gate.n()));
  for (size_t i = 0; i < gated.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i);
    gated[i] = Gated<T>(Product<T>(weights.gate.packed(), row, input),
                        Product<T>(weights.up.packed(), row, input), hf);
  }
  for (int64_t n = 0; n < weights.down.n(); ++n) {
    const Y value = FromDouble<Y>(Product<T>(weights.down.packed(), n, gated));
    std::memcpy(y + n * static_cast<int64_t>(sizeof(Y)), &value, sizeof(Y));
  }
}

}  // namespace

absl::Status MlpSwiGluReference(const ExecutionContext& context, const MlpSwiGluArgs& args) {
  absl::StatusOr<ConstRows> x = AsRows("x", args.x);
  absl::StatusOr<Rows> y = AsRows("y", args.y);
  if (!x.ok()) return x.status();
  if (!y.ok()) return y.status();
  VisitFloat(args.x.dtype, [&](auto t) {
    VisitFloat(args.y.dtype, [&](auto out) {
      context.parallel_for(x->rows, [&](int64_t row) {
        ReferenceRow<decltype(t), decltype(out)>(
            *args.weights, args.rounding == Rounding::kHf,
            static_cast<const std::byte*>(x->data) +
                row * x->stride * static_cast<int64_t>(sizeof(t)),
            static_cast<std::byte*>(y->data) + row * y->stride * static_cast<int64_t>(sizeof(out)));
      });
    });
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
