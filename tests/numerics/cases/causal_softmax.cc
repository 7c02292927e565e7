// The causal softmax as a kernel of rows: batches of one query, which keeps every key. The mask is
// causal_softmax_test.cc's affair.
#include "kernels/causal_softmax/causal_softmax.h"

#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

TensorView OneQueryEach(const TensorView& rows) {
  TensorView view = rows;
  view.rank = 3;
  view.shape = {rows.shape[0], 1, rows.shape[1]};
  view.stride = {rows.stride[0], rows.stride[0], 1};
  return view;
}

}  // namespace

// In units of 2^-24. An output that is not 0 has a score within 104 of the maximum: the rounding of
// the difference, of its product with log2 e (16-bit outputs) and that constant's cost up to as
// much each; an exponent kept 24 higher 44; the power itself 4. The sum's terms have at most that
// error, those that count far less, and its chain of additions is at most 40 + KV / 512 long; its
// reciprocal and the product are one each.
double CausalSoftmaxRoundings(DType out, int64_t columns) {
  return (out == DType::kF32 ? 104 : 3 * 104 + 44) + 8 + SumChain(columns);
}

std::vector<Case> CausalSoftmaxCases() {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    for (const DType x : WithFp32(y)) {
      Case c;
      c.name = absl::StrCat(Label(x), "_to_", Label(y));
      c.inputs = {{"x", x}};
      c.outputs = {{"y", y}};
      c.errors = {{[y](int64_t columns) { return CausalSoftmaxRoundings(y, columns); }}};
      if (x == y) c.in_place.push_back({0});
      c.run = [](const std::string& name, const ExecutionContext& context, Views in, Views out) {
        FUSEBLOCK_ASSIGN_OR_RETURN(
            const auto args, CheckCausalSoftmax(OneQueryEach(in[0]), 1.0f, OneQueryEach(out[0])));
        return RunNamed(CausalSoftmaxImplementations(), name, context, args);
      };
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
