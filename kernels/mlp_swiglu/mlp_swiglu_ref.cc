// The reference feed-forward: FP64 throughout, rounded only where the rounding mode stores a
// tensor.
#include "kernels/mlp_swiglu/mlp_swiglu_ref.h"

#include <cmath>
#include <vector>

#include "kernels/base/reference.h"
#include "kernels/base/status.h"
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

template <typename T>
std::vector<double> ReferenceRow(const MlpSwiGluWeights& weights, bool hf,
                                 const std::vector<double>& input) {
  std::vector<double> gated(static_cast<size_t>(weights.gate.n()));
  for (size_t i = 0; i < gated.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i);
    gated[i] = Gated<T>(Product<T>(weights.gate.packed(), row, input),
                        Product<T>(weights.up.packed(), row, input), hf);
  }
  std::vector<double> out(static_cast<size_t>(weights.down.n()));
  for (size_t n = 0; n < out.size(); ++n) {
    out[n] = Product<T>(weights.down.packed(), static_cast<int64_t>(n), gated);
  }
  return out;
}

}  // namespace

std::vector<double> MlpSwiGluReferenceRow(const MlpSwiGluWeights& weights, Rounding rounding,
                                          const std::vector<double>& x) {
  std::vector<double> out;
  VisitFloat(weights.gate.dtype(), [&](auto type) {
    out = ReferenceRow<decltype(type)>(weights, rounding == Rounding::kHf, x);
  });
  return out;
}

absl::Status MlpSwiGluReference(const ExecutionContext& context, const MlpSwiGluArgs& args) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const ConstRows x, AsRows("x", args.x));
  FUSEBLOCK_ASSIGN_OR_RETURN(const Rows y, AsRows("y", args.y));
  context.parallel_for(x.rows, [&](int64_t row) {
    std::vector<double> input(static_cast<size_t>(x.cols));
    for (size_t i = 0; i < input.size(); ++i) {
      input[i] = ReadDouble(x.data, args.x.dtype, row * x.stride + static_cast<int64_t>(i));
    }
    const std::vector<double> out = MlpSwiGluReferenceRow(*args.weights, args.rounding, input);
    for (size_t n = 0; n < out.size(); ++n) {
      WriteDouble(y.data, args.y.dtype, row * y.stride + static_cast<int64_t>(n), out[n]);
    }
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
