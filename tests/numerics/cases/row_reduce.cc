// The sum and the maximum of rows, by warps and by blocks.
#include <cmath>

#include "kernels/block_reduce/block_reduce.h"
#include "kernels/warp_reduce/warp_reduce.h"
#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

// Below it every sum of 300,000 is finite.
constexpr double kSumMax = 1e32;

// A sum's error is that of its longest chain of additions, relative to the sum of the magnitudes. A
// warp's lane adds a 32nd of the row and a vector target's a part of that at most; then the tree.
OutputError SumError() {
  OutputError error;
  error.fp32_roundings = Roundings(1);
  error.magnitudes = [](const std::vector<Tensor>& inputs) {
    const Tensor& x = inputs[0];
    const double columns = static_cast<double>(x.columns());
    std::vector<double> magnitudes(static_cast<size_t>(x.rows()));
    for (int64_t row = 0; row < x.rows(); ++row) {
      for (int64_t i = 0; i < x.columns(); ++i) {
        magnitudes[static_cast<size_t>(row)] += std::abs(x.At(row, i));
      }
    }
    return [magnitudes, chain = std::min(columns, 40 + columns / 32)](int64_t row, int64_t) {
      return chain * magnitudes[static_cast<size_t>(row)];
    };
  };
  return error;
}

std::vector<Case> RowReduceCases(absl::Span<const Implementation<RowReduceArgs>> list) {
  std::vector<Case> cases;
  for (const DType x : kFloatDTypes) {
    for (const DType y : WithFp32(x)) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        const bool sum = op == ReduceOp::kSum;
        Case c;
        c.name = absl::StrCat(sum ? "sum_" : "max_", Label(x), "_to_", Label(y));
        c.inputs = {{"x", x, OperandKind::kRows, sum ? kSumMax : 1e300}};
        c.outputs = {{"y", y, OperandKind::kPerRow}};
        c.errors = {sum ? SumError() : OutputError{Roundings(0)}};
        c.run = [op, list](const std::string& name, const ExecutionContext& context, Views in,
                           Views out) {
          FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckRowReduce(op, in[0], out[0]));
          return RunNamed(list, name, context, args);
        };
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<Case> WarpReduceCases() { return RowReduceCases(WarpReduceRowsImplementations()); }
std::vector<Case> BlockReduceCases() { return RowReduceCases(BlockReduceRowsImplementations()); }

}  // namespace fuseblock::testing
