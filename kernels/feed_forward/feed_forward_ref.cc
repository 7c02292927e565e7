// The reference feed-forward networks: FP64 throughout, rounded only where the rounding mode stores
// a tensor.
#include "kernels/feed_forward/feed_forward_ref.h"

#include <vector>

#include "kernels/base/reference.h"
#include "kernels/base/reference_math.h"
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

// One element of the product that down reads.
template <typename T>
double Inner(const FeedForwardWeights& weights, bool hf, int64_t row,
             const std::vector<double>& x) {
  const FeedForwardFormEntry& form = EntryOf(weights.form);
  const auto stored = [hf](double value) { return hf ? Round<T>(value) : value; };
  const double first = stored(Product<T>(weights.inner().packed(), row, x));
  const double activated = stored(ActivatedFp64(form.activation, first));
  if (!form.gated) return Round<T>(activated);
  return Round<T>(activated * stored(Product<T>(weights.up.packed(), row, x)));
}

template <typename T>
std::vector<double> ReferenceRow(const FeedForwardWeights& weights, bool hf,
                                 const std::vector<double>& input) {
  std::vector<double> inner(static_cast<size_t>(weights.intermediate()));
  for (size_t i = 0; i < inner.size(); ++i) {
    inner[i] = Inner<T>(weights, hf, static_cast<int64_t>(i), input);
  }
  std::vector<double> out(static_cast<size_t>(weights.down.n()));
  for (size_t n = 0; n < out.size(); ++n) {
    out[n] = Product<T>(weights.down.packed(), static_cast<int64_t>(n), inner);
  }
  return out;
}

}  // namespace

std::vector<double> FeedForwardReferenceRow(const FeedForwardWeights& weights, Rounding rounding,
                                            const std::vector<double>& x) {
  std::vector<double> out;
  VisitFloat(weights.dtype(), [&](auto type) {
    out = ReferenceRow<decltype(type)>(weights, rounding == Rounding::kHf, x);
  });
  return out;
}

absl::Status FeedForwardReference(const ExecutionContext& context, const FeedForwardArgs& args) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const ConstRows x, AsRows("x", args.x));
  FUSEBLOCK_ASSIGN_OR_RETURN(const Rows y, AsRows("y", args.y));
  context.parallel_for(x.rows, [&](int64_t row) {
    std::vector<double> input(static_cast<size_t>(x.cols));
    for (size_t i = 0; i < input.size(); ++i) {
      input[i] = ReadDouble(x.data, args.x.dtype, row * x.stride + static_cast<int64_t>(i));
    }
    const std::vector<double> out = FeedForwardReferenceRow(*args.weights, args.rounding, input);
    for (size_t n = 0; n < out.size(); ++n) {
      WriteDouble(y.data, args.y.dtype, row * y.stride + static_cast<int64_t>(n), out[n]);
    }
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
