// gpt-oss's clamped, interleaved SwiGLU.
#include "kernels/swiglu_clamped/swiglu_clamped.h"

#include <algorithm>

#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

// In units of 2^-24: x sigmoid(1.702 x) as the tanh form of GELU, 16, up + 1 and the product 1
// each. A 16-bit output may use an exponential whose argument, up to 142, is rounded (98 units) and
// the hardware's exponential and reciprocal (16).
double ClampedRoundings(DType out) { return out == DType::kF32 ? 18 : 120; }

double UpFactor(const std::vector<Tensor>& inputs, int64_t row, int64_t column) {
  return std::clamp(inputs[0].At(row, 2 * column + 1), -7.0, 7.0) + 1;
}

}  // namespace

std::vector<Case> SwiGluClampedCases() {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    for (const DType in : WithFp32(y)) {
      Case c;
      c.name = absl::StrCat(Label(in), "_to_", Label(y));
      c.inputs = {{"gate_up", in, OperandKind::kPairs}};
      c.outputs = {{"y", y}};
      c.errors = {{Roundings(ClampedRoundings(y)), false, false, UpFactor}};
      c.run = [](const std::string& name, const ExecutionContext& context, Views views, Views out) {
        FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckSwiGluClamped(views[0], out[0]));
        return RunNamed(SwiGluClampedImplementations(), name, context, args);
      };
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
