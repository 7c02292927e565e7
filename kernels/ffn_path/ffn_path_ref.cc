// The reference path: FP64 throughout, rounded only where the rounding mode stores a tensor.
#include <cmath>
#include <vector>

#include "kernels/base/reference.h"
#include "kernels/base/status.h"
#include "kernels/feed_forward/feed_forward_ref.h"
#include "kernels/ffn_path/ffn_path.h"

namespace fuseblock {
namespace {

// norm(h), as the products read it.
std::vector<double> Normalised(const FfnPathArgs& args, const std::vector<double>& h) {
  double squares = 0;
  for (const double value : h) squares += value * value;
  const double root = std::sqrt(squares / static_cast<double>(h.size()) + args.params.eps);
  std::vector<double> n(h.size());
  for (size_t i = 0; i < h.size(); ++i) {
    n[i] = h[i] / root;
    if (args.params.form == RmsNormForm::kNormalisedFirst) n[i] = RoundedTo(args.x.dtype, n[i]);
    if (args.norm.data != nullptr) {
      n[i] *= ReadDouble(args.norm.data, args.norm.dtype, static_cast<int64_t>(i)) +
              args.params.weight_offset;
    }
    n[i] = RoundedTo(args.x.dtype, n[i]);
  }
  return n;
}

}  // namespace

absl::Status FfnPathReference(const ExecutionContext& context, const FfnPathArgs& args) {
  const bool hf = args.rounding == Rounding::kHf;
  const DType dtype = args.x.dtype;
  ConstRows residual;
  FUSEBLOCK_ASSIGN_OR_RETURN(const ConstRows x, AsRows("x", args.x));
  FUSEBLOCK_ASSIGN_OR_RETURN(const Rows y, AsRows("y", args.y));
  if (args.residual.rank != 0) {
    FUSEBLOCK_ASSIGN_OR_RETURN(residual, AsRows("residual", args.residual));
  }
  context.parallel_for(x.rows, [&](int64_t row) {
    std::vector<double> h(static_cast<size_t>(x.cols));
    for (size_t i = 0; i < h.size(); ++i) {
      const auto col = static_cast<int64_t>(i);
      h[i] = ReadDouble(x.data, dtype, row * x.stride + col);
      if (residual.data == nullptr) continue;
      h[i] += ReadDouble(residual.data, dtype, row * residual.stride + col);
      if (hf) h[i] = RoundedTo(dtype, h[i]);
    }
    const std::vector<double> down =
        FeedForwardReferenceRow(*args.weights, args.rounding, Normalised(args, h));
    for (size_t i = 0; i < h.size(); ++i) {
      const double added = hf ? RoundedTo(dtype, down[i]) : down[i];
      WriteDouble(y.data, dtype, row * y.stride + static_cast<int64_t>(i), h[i] + added);
    }
  });
  return absl::OkStatus();
}

}  // namespace fuseblock
