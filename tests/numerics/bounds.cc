// What the ladder allows each row kernel, for the record of errors (tools/bench/numerics.py):
//
//   numerics_bounds COLUMNS...     a line "KERNEL DTYPE ULP" for each kernel and dtype
//
// The largest error of any output, in that output's ULP, over rows of those lengths, with all
// operands of one dtype and one rounding at the end; "inf" where the ladder's bound is relative to
// terms that may cancel, and no number of ULP.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

// Whether the case is of that dtype alone and rounds no intermediate to it.
bool IsPlain(const Case& c, DType dtype) {
  const auto of_dtype = [dtype](const Operand& operand) {
    return operand.dtype == dtype || Traits(operand.dtype).epsilon == 0;
  };
  const auto rounds_once = [](const OutputError& error) { return !error.rounds_intermediate; };
  return c.widens && std::all_of(c.inputs.begin(), c.inputs.end(), of_dtype) &&
         std::all_of(c.outputs.begin(), c.outputs.end(), of_dtype) &&
         std::all_of(c.errors.begin(), c.errors.end(), rounds_once);
}

// Half an ULP for the last rounding and, before it, FP32 roundings, each half of FP32's epsilon of
// a value that is less than 2 / epsilon ULP.
double Ulp(const OutputError& error, DType dtype, int64_t columns) {
  if (error.bit_exact) return 0.5;
  if (error.magnitudes) return std::numeric_limits<double>::infinity();
  return 0.5 + error.fp32_roundings(columns) * kUnitRoundoffFp32 * 2 / Traits(dtype).epsilon;
}

void Print(const KernelUnderTest& kernel, DType dtype, const std::vector<int64_t>& columns) {
  double ulp = 0;
  for (const Case& c : kernel.cases()) {
    if (!IsPlain(c, dtype)) continue;
    for (const OutputError& error : c.errors) {
      for (const int64_t count : columns) ulp = std::max(ulp, Ulp(error, dtype, count));
    }
  }
  std::printf("%s %s %.9g\n", kernel.name, std::string(Traits(dtype).label).c_str(), ulp);
}

int Main(int argc, char** argv) {
  std::vector<int64_t> columns;
  for (int i = 1; i < argc; ++i) columns.push_back(std::atoll(argv[i]));
  if (columns.empty() || *std::min_element(columns.begin(), columns.end()) <= 0) {
    std::fprintf(stderr, "usage: %s COLUMNS...\n", argv[0]);
    return 2;
  }
  for (const KernelUnderTest& kernel : KernelsUnderTest()) {
    for (const DType dtype : kFloatDTypes) Print(kernel, dtype, columns);
  }
  return 0;
}

}  // namespace
}  // namespace fuseblock::testing

int main(int argc, char** argv) { return fuseblock::testing::Main(argc, argv); }
