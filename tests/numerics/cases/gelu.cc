// The two forms of GELU.
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

}  // namespace fuseblock::testing
