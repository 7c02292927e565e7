// The two forms of GELU.
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

// gelu in FP32, in units of 2^-24: the exponential 4 (within 2 ulp), the approximation of the rest
// 1 and the evaluation of its numerator and denominator 2 each, reciprocal and products 5, the
// difference and a split range 1 each. A 16-bit output may use an exponential whose argument is
// known to 2^-20 (16 units), a polynomial within 33 units that loses 4 in its evaluation, and the
// hardware's exponential and reciprocal, 6.
double GeluRoundings(DType out) { return out == DType::kF32 ? 16 : 64; }

}  // namespace

std::vector<Case> GeluErfCases() { return UnaryCases(GeluErfImplementations(), GeluRoundings); }
std::vector<Case> GeluTanhCases() { return UnaryCases(GeluTanhImplementations(), GeluRoundings); }

}  // namespace fuseblock::testing
