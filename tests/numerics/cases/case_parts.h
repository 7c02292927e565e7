// What the lists of cases in this folder share.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status.h"
#include "kernels/base/unary.h"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {

using Views = absl::Span<const TensorView>;

inline std::string Label(DType dtype) { return std::string(Traits(dtype).label); }

inline std::function<double(int64_t)> Roundings(double count) {
  return [count](int64_t) { return count; };
}

// The longest chain of additions of a row's sum: lanes and segments, never more than the terms.
inline double SumChain(int64_t columns) {
  return std::min<double>(static_cast<double>(columns), 40 + static_cast<double>(columns) / 512);
}

// The dtypes that an operand beside one of `dtype` may have: that one and FP32.
inline std::vector<DType> WithFp32(DType dtype) {
  if (dtype == DType::kF32) return {dtype};
  return {dtype, DType::kF32};
}

// The cases of a kernel y = f(x) (kernels/base/unary.h), whose FP32 arithmetic makes `roundings`.
std::vector<Case> UnaryCases(absl::Span<const Implementation<UnaryArgs>> list,
                             double (*roundings)(DType out));

// The roundings of a causal softmax, in units of 2^-24.
double CausalSoftmaxRoundings(DType out, int64_t columns);

// Every kernel's cases, in the files of this folder; a new kernel is a line here and one in
// KernelsUnderTest().
std::vector<Case> WarpReduceCases();
std::vector<Case> BlockReduceCases();
std::vector<Case> AddResidualCases();
std::vector<Case> SiluCases();
std::vector<Case> GeluErfCases();
std::vector<Case> GeluTanhCases();
std::vector<Case> SwiGluCases();
std::vector<Case> SwiGluClampedCases();
std::vector<Case> GeGluCases();
std::vector<Case> RmsNormCases();
std::vector<Case> AddRmsNormCases();
std::vector<Case> LayerNormCases();
std::vector<Case> SoftmaxCases();
std::vector<Case> SoftmaxMaskedCases();
std::vector<Case> CausalSoftmaxCases();
std::vector<Case> EmbeddingCases();
std::vector<Case> RopeCases();

}  // namespace fuseblock::testing
