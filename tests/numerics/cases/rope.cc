// The rotary position embedding. The ladder's rows are tokens; its columns are cut into heads.
#include "kernels/rope/rope.h"

#include <cmath>

#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

struct RopeMode {
  const char* name;
  RopePairs pairs;
  bool whole;   // all of a head turns, or the even number of columns up to two thirds of it
  bool with_k;  // k beside q
  RopeScaling scaling;
};

RopeScaling Yarn() {
  RopeScaling scaling;
  scaling.kind = RopeScalingKind::kYarn;
  scaling.factor = 16;
  scaling.original_max_position = 8192;
  return scaling;
}

const RopeMode kModes[] = {
    {"halves", RopePairs::kHalves, true, false, {}},
    {"halves_qk_partial_yarn", RopePairs::kHalves, false, true, Yarn()},
    {"neighbours", RopePairs::kNeighbours, true, false, {}},
    {"neighbours_qk_partial", RopePairs::kNeighbours, false, true, {}},
};

// Three heads where the columns allow it, else one.
int64_t HeadsOf(int64_t columns) { return columns % 3 == 0 ? 3 : 1; }

int64_t RotaryDims(const RopeMode& mode, int64_t head_dim) {
  return (mode.whole ? head_dim : head_dim * 2 / 3) / 2 * 2;
}

TensorView Heads(const TensorView& rows) {
  const int64_t heads = HeadsOf(rows.cols());
  TensorView view(rows.data, rows.dtype, {rows.shape[0], heads, rows.cols() / heads}, rows.device);
  view.stride[0] = rows.stride[0];
  return view;
}

// |a| + |b| of the column's pair, with the attention factor: at least the sum of the two products'
// magnitudes.
double PairMagnitude(const RopeMode& mode, const Tensor& x, int64_t row, int64_t column) {
  const int64_t head_dim = x.columns() / HeadsOf(x.columns());
  const int64_t r = RotaryDims(mode, head_dim), within = column % head_dim;
  const double value = std::abs(x.At(row, column));
  if (within >= r) return value;
  const int64_t distance = mode.pairs == RopePairs::kHalves ? (within < r / 2 ? r / 2 : -r / 2)
                                                            : (within % 2 == 0 ? 1 : -1);
  return 1.3 * (value + std::abs(x.At(row, column + distance)));
}

Case RopeCase(DType dtype, const RopeMode& mode) {
  Case c;
  c.name = absl::StrCat(Label(dtype), "_", mode.name);
  // The attention factor, 1.277, may not take a product to infinity.
  const double largest = mode.scaling.kind == RopeScalingKind::kYarn ? 1e38 : 1e300;
  c.inputs = {{"positions", DType::kI64, OperandKind::kPositions},
              {"q", dtype, OperandKind::kRows, largest}};
  c.outputs = {{"q_out", dtype}};
  c.in_place = {{1}};
  if (mode.with_k) {
    c.inputs.push_back({"k", dtype, OperandKind::kRows, largest});
    c.outputs.push_back({"k_out", dtype});
    c.in_place = {{1, 2}, {1, -1}, {-1, 2}};
  }
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    // cos and sin are rounded within 1.01 units of 2^-24; each product and the sum once.
    OutputError error{Roundings(4)};
    error.magnitudes = [&mode, i](const std::vector<Tensor>& inputs) {
      return [&mode, &x = inputs[i + 1]](int64_t row, int64_t column) {
        return PairMagnitude(mode, x, row, column);
      };
    };
    c.errors.push_back(error);
  }
  c.run = [&mode](const std::string& name, const ExecutionContext& context, Views in,
                  Views out) -> absl::Status {
    const RopeOperand q{Heads(in[1]), Heads(out[0])};
    std::optional<RopeOperand> k;
    if (mode.with_k) k = RopeOperand{Heads(in[2]), Heads(out[1])};
    RopeParams params;
    params.rotary_dims = RotaryDims(mode, q.in.cols());
    params.max_position = kPositions;
    params.scaling = mode.scaling;
    FUSEBLOCK_ASSIGN_OR_RETURN(const auto table, RopeTable::Make(context.device, params));
    FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckRope(table, mode.pairs, in[0], q, k));
    return RunNamed(RopeImplementations(), name, context, args);
  };
  return c;
}

}  // namespace

std::vector<Case> RopeCases() {
  std::vector<Case> cases;
  for (const DType dtype : kFloatDTypes) {
    for (const RopeMode& mode : kModes) cases.push_back(RopeCase(dtype, mode));
  }
  return cases;
}

}  // namespace fuseblock::testing
