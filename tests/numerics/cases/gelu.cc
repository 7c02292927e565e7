// The two forms of GELU, and the GeGLU gate of each.
#include <cmath>

#include "kernels/geglu/geglu.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

// gelu in FP32, in units of 2^-24: the exponential 4 (within 2 ulp), the approximation of the rest
// 1 and the evaluation of its numerator and denominator 2 each, reciprocal and products 5, the
// difference and a split range 1 each. A 16-bit output may use a polynomial within 33 units that
// loses 4 in its evaluation, the hardware's exponential and reciprocal, 6, and an exponent of at
// most 128 that is known to 2^-18 from its own rounding, 44 units, and to two roundings of a square
// or a cube, 2 x 87 units at the end of BF16's range.
double GeluRoundings(DType out) { return out == DType::kF32 ? 16 : 261; }

}  // namespace

std::vector<Case> GeluErfCases() { return UnaryCases(GeluErfImplementations(), GeluRoundings); }
std::vector<Case> GeluTanhCases() { return UnaryCases(GeluTanhImplementations(), GeluRoundings); }

namespace {

double UpFactor(const std::vector<Tensor>& inputs, int64_t row, int64_t column) {
  return inputs[1].At(row, column);
}

// Of a gate that is itself a subnormal number, and of one so far below 0 that its gelu is taken for
// 0; elsewhere gelu keeps its precision.
double UpFactorAtTheEnds(GeluForm form, const std::vector<Tensor>& inputs, int64_t row,
                         int64_t column) {
  const double gate = inputs[0].At(row, column);
  const bool zero = gate <= -(form == GeluForm::kErf ? kGeluErfZero : kGeluTanhZero);
  return zero || std::abs(gate) < 0x1p-124 ? UpFactor(inputs, row, column) : 0;
}

Case GeGluCase(GeluForm form, Rounding rounding, DType in, DType y) {
  const bool hf = rounding == Rounding::kHf;
  Case c;
  c.name = absl::StrCat(form == GeluForm::kErf ? "erf_" : "tanh_", Label(in), "_to_", Label(y),
                        hf ? "_hf" : "_fused");
  c.inputs = {{"gate", in}, {"up", in}};
  c.outputs = {{"y", y}};
  // The product with up is one more than gelu's.
  c.errors = {{Roundings(GeluRoundings(y) + 1), false, hf && y != DType::kF32, UpFactor}};
  if (!hf && y == DType::kF32) {
    c.errors[0].factor = [form](const std::vector<Tensor>& inputs, int64_t row, int64_t column) {
      return UpFactorAtTheEnds(form, inputs, row, column);
    };
  }
  if (in == y) c.in_place = {{0}, {1}};
  c.widens = !hf;
  c.run = [form, rounding](const std::string& name, const ExecutionContext& context, Views views,
                           Views out) {
    FUSEBLOCK_ASSIGN_OR_RETURN(const auto args,
                               CheckGeGlu(views[0], views[1], form, rounding, out[0]));
    return RunNamed(GeGluImplementations(), name, context, args);
  };
  return c;
}

}  // namespace

std::vector<Case> GeGluCases() {
  std::vector<Case> cases;
  for (const GeluForm form : {GeluForm::kErf, GeluForm::kTanh}) {
    for (const DType y : kFloatDTypes) {
      for (const DType in : WithFp32(y)) {
        cases.push_back(GeGluCase(form, Rounding::kFused, in, y));
        if (in == y) cases.push_back(GeGluCase(form, Rounding::kHf, in, y));
      }
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
