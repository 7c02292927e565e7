// The two forms of GELU over their whole domain, and against each other.
#include <cmath>

#include "gtest/gtest.h"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

const char* const kForms[] = {"gelu_erf", "gelu_tanh"};

struct Found {
  const KernelUnderTest* kernel = nullptr;
  Case c;
};

Found Find(const std::string& kernel_name, const std::string& case_name) {
  for (const KernelUnderTest& kernel : KernelsUnderTest()) {
    if (kernel.name != kernel_name) continue;
    for (const Case& c : kernel.cases()) {
      if (c.name == case_name) return {&kernel, c};
    }
  }
  ADD_FAILURE() << "no case " << kernel_name << " " << case_name;
  return {};
}

std::vector<Tensor> One(Tensor tensor) {
  std::vector<Tensor> list;
  list.push_back(std::move(tensor));
  return list;
}

// Every value of a 16-bit dtype, NaNs with payloads among them.
Tensor EveryPattern(DType dtype) {
  Tensor all(dtype, 256, 256);
  auto* bits = reinterpret_cast<uint16_t*>(all.Data(all.memory()));
  for (int i = 0; i < 65536; ++i) bits[i] = static_cast<uint16_t>(i);
  return all;
}

// FP32 values of both signs, a ratio of 1.003 apart, and the ends of the implementations' ranges.
Tensor Sweep() {
  Tensor sweep(DType::kF32, 2, 65536);
  double magnitude = 0x1p-149;
  for (int64_t i = 0; i < 65500; ++i) {
    sweep.Set(0, i, magnitude);
    sweep.Set(1, i, -magnitude);
    magnitude *= 1.00273;
  }
  const double ends[] = {4, 10, 11, 13, 14.6, 15, 20, 1e4, 3e38};
  for (int64_t i = 65500; i < 65536; ++i) {
    const double end = ends[(i - 65500) / 4];
    const double value = end * (1 + 0x1p-23 * static_cast<double>((i - 65500) % 4 - 1));
    sweep.Set(0, i, value);
    sweep.Set(1, i, -value);
  }
  return sweep;
}

void ExpectWithinBoundEverywhere(const std::string& form, const std::string& case_name,
                                 std::vector<Tensor> inputs) {
  const Found found = Find(form, case_name);
  ASSERT_NE(found.kernel, nullptr);
  const std::vector<Tensor> expected = Expected(found.c, inputs);
  for (const Variant& variant : Variants(found.kernel->implementations())) {
    const std::vector<Tensor> got = RunCase(found.c, variant, inputs);
    Bound bound;
    bound.fp32_roundings = found.c.errors[0].fp32_roundings(1);
    const Comparison comparison = Compare(expected[0], got[0], bound);
    EXPECT_TRUE(comparison.within)
        << form << " " << case_name << " on " << variant.label << ": " << comparison.message;
  }
}

TEST(Gelu, EverySixteenBitValue) {
  for (const char* form : kForms) {
    ExpectWithinBoundEverywhere(form, "fp16_to_fp16", One(EveryPattern(DType::kF16)));
    ExpectWithinBoundEverywhere(form, "bf16_to_bf16", One(EveryPattern(DType::kBF16)));
  }
}

TEST(Gelu, Fp32OverItsWholeRange) {
  for (const char* form : kForms) {
    for (const char* to : {"fp32_to_fp32", "fp32_to_fp16", "fp32_to_bf16"}) {
      ExpectWithinBoundEverywhere(form, to, One(Sweep()));
    }
  }
}

// At x = 2 they are 9.8e-5 apart, at 2.7 4.7e-4: far more than either's error.
TEST(Gelu, TheFormsAreTwoFunctions) {
  for (const double x : {2.0, -2.0, 2.7, -2.7}) {
    Tensor value(DType::kF32, 1, 1);
    value.Set(0, 0, x);
    const double apart = std::abs(x) == 2 ? 9.7e-5 : 4.6e-4;
    std::vector<Tensor> inputs = One(std::move(value));
    const Found erf = Find("gelu_erf", "fp32_to_fp32");
    const Found tanh = Find("gelu_tanh", "fp32_to_fp32");
    for (const Variant& variant : Variants(erf.kernel->implementations())) {
      const double a = RunCase(erf.c, variant, inputs)[0].At(0, 0);
      const double b = RunCase(tanh.c, variant, inputs)[0].At(0, 0);
      EXPECT_GT(std::abs(a - b), apart) << "at " << x << " on " << variant.label;
    }
  }
}

// gelu(x) - gelu(-x) = x: each side within its bound, and x exact.
TEST(Gelu, TheOddPartIsHalfOfX) {
  for (const char* form : kForms) {
    const Found found = Find(form, "fp32_to_fp32");
    for (const Variant& variant : Variants(found.kernel->implementations())) {
      std::vector<Tensor> inputs = One(Sweep());
      const Tensor got = RunCase(found.c, variant, inputs)[0].Copy();
      const double roundings = found.c.errors[0].fp32_roundings(1) + 1;
      for (int64_t i = 0; i < got.columns(); ++i) {
        const double x = inputs[0].At(0, i);
        const double error = std::abs(got.At(0, i) - got.At(1, i) - x);
        ASSERT_LE(error, roundings * (kUnitRoundoffFp32 * x + 0x1p-149))
            << form << " at " << x << " on " << variant.label;
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
