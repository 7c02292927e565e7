// SiLU and the SwiGLU gate.
#include "kernels/silu/silu.h"

#include "kernels/swiglu/swiglu.h"
#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

// silu in FP32, in units of 2^-24: e^-|x| within 2 ulp of FP32, 4 units, and no more of it reaches
// the result; 1 + t, x t and the quotient one each; one for a split range. A 16-bit output may take
// the hardware's power of two and reciprocal: 74 units, and 96 where up makes a result of a gate
// that alone would vanish (kernels/base/silu.cuh); the product with up is one more.
double SiluRoundings(DType out) { return out == DType::kF32 ? 8 : 74; }

}  // namespace

std::vector<Case> SiluCases() { return UnaryCases(SiluImplementations(), SiluRoundings); }

namespace {

double UpFactor(const std::vector<Tensor>& inputs, int64_t row, int64_t column) {
  return inputs[1].At(row, column);
}

}  // namespace

std::vector<Case> SwiGluCases() {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    for (const DType in : WithFp32(y)) {
      for (const Rounding rounding : {Rounding::kFused, Rounding::kHf}) {
        const bool hf = rounding == Rounding::kHf;
        if (hf && in != y) continue;
        Case c;
        c.name = absl::StrCat(Label(in), "_to_", Label(y), hf ? "_hf" : "_fused");
        c.inputs = {{"gate", in}, {"up", in}};
        c.outputs = {{"y", y}};
        c.errors = {
            {Roundings(y == DType::kF32 ? 9 : 97), false, hf && y != DType::kF32, UpFactor}};
        if (in == y) c.in_place = {{0}, {1}};
        c.widens = !hf;
        c.run = [rounding](const std::string& name, const ExecutionContext& context, Views views,
                           Views out) {
          FUSEBLOCK_ASSIGN_OR_RETURN(const auto args,
                                     CheckSwiGlu(views[0], views[1], rounding, out[0]));
          return RunNamed(SwiGluImplementations(), name, context, args);
        };
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
