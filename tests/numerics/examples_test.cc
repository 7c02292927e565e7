// Rungs 1 and 2 of the numerical ladder: examples worked by hand, from the kernels' headers and
// from inputs that broke others, on every implementation.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

using Values = std::vector<double>;

struct Example {
  const char* kernel;
  const char* of;              // the case's name in cases.h
  std::vector<Values> inputs;  // each operand's elements, one row unless `rows` says otherwise
  std::vector<Values> outputs;
  int64_t rows = 1;
};

const std::vector<Example>& Examples() {
  static const auto* examples = new std::vector<Example>{
      {"add_residual", "fp32_fp32_to_fp32", {{1, 2}, {0.5, -2}}, {{1.5, 0}}},
      {"add_residual",
       "fp16_fp16_to_fp16",
       {{2048, 65504, 6e-8}, {1, 65504, 6e-8}},
       {{2048, kInfinity, 0x1p-23}}},
      // Ties go to even; a sum in BF16 keeps 8 bits.
      {"add_residual",
       "bf16_bf16_to_bf16",
       {{256, 256, 1, -kInfinity}, {1, 3, kNaN, kInfinity}},
       {{256, 260, kNaN, kNaN}}},
      {"add_residual", "fp32_bf16_to_bf16", {{1.001953125}, {0.001953125}}, {{1.0}}},
      {"warp_reduce", "sum_fp32_to_fp32", {{1, 2, 4}}, {{7}}},
      {"warp_reduce",
       "sum_fp32_to_fp32",
       {{1, kInfinity, 2, kNaN, kInfinity, -kInfinity, 1, 2}},
       {{kInfinity, kNaN, kNaN, 3}},
       4},
      // In FP32 until the end: 65504 + 65504 - 65504, and more than 65504.
      {"warp_reduce",
       "sum_fp16_to_fp16",
       {{65504, 65504, -65504, 65504, 65504, 0}},
       {{65504, kInfinity}},
       2},
      {"warp_reduce", "sum_fp16_to_fp32", {{65504, 65504, 1}}, {{131009}}},
      {"warp_reduce",
       "max_fp32_to_fp32",
       {{1, 4, 2, kNaN, 1, 2, 1, 2, kNaN, -kInfinity, -kInfinity, -kInfinity, -3, -2, -kInfinity}},
       {{4, kNaN, kNaN, -kInfinity, -2}},
       5},
      {"block_reduce", "sum_fp32_to_fp32", {{1, 2, 4}}, {{7}}},
      {"block_reduce",
       "sum_fp32_to_fp32",
       {{1, kInfinity, 2, kNaN, kInfinity, -kInfinity, 1, 2}},
       {{kInfinity, kNaN, kNaN, 3}},
       4},
      // In FP32 until the end: 65504 + 65504 - 65504, and more than 65504.
      {"block_reduce",
       "sum_fp16_to_fp16",
       {{65504, 65504, -65504, 65504, 65504, 0}},
       {{65504, kInfinity}},
       2},
      {"block_reduce", "sum_fp16_to_fp32", {{65504, 65504, 1}}, {{131009}}},
      {"block_reduce",
       "max_fp32_to_fp32",
       {{1, 4, 2, kNaN, 1, 2, 1, 2, kNaN, -kInfinity, -kInfinity, -kInfinity, -3, -2, -kInfinity}},
       {{4, kNaN, kNaN, -kInfinity, -2}},
       5},
      {"block_reduce", "max_bf16_to_bf16", {{kInfinity, kNaN}}, {{kNaN}}},
      {"silu",
       "fp32_to_fp32",
       {{0, 1, -1, -0.0}},
       {{0, 0.7310585786300049, -0.2689414213699951, -0.0}}},
      // Near -87 and below, where e^-x overflows but the result does not; then the smallest
      // normal's end.
      {"silu",
       "fp32_to_fp32",
       {{-87, -88.75, -91, -kInfinity, -1e4, kInfinity, 3e38, kNaN}},
       {{-1.431855945e-36, -2.5382423902e-37, -2.7431119944e-38, -0.0, -0.0, kInfinity, 3e38,
         kNaN}}},
      {"silu", "bf16_to_bf16", {{1, -1}}, {{0.73046875, -0.26953125}}},
      {"gelu_erf",
       "fp32_to_fp32",
       {{0, 1, -1, 2, 2.7, -2.7, -5, -10, -13}},
       {{0, 0.841344746069, -0.158655253931, 1.9544997361, 2.6906391986, -0.00936082894,
         -1.4332578594e-6, -7.61985302416e-23, -7.95231371941e-38}}},
      {"gelu_erf",
       "fp32_to_fp32",
       {{kInfinity, -kInfinity, -20, -1e4, -3e38, 20, 3e38, kNaN}},
       {{kInfinity, -0.0, -0.0, -0.0, -0.0, 20, 3e38, kNaN}}},
      {"gelu_erf", "bf16_to_bf16", {{1, -1, 10.5, 300}}, {{0.83984375, -0.158203125, 10.5, 300}}},
      {"gelu_tanh",
       "fp32_to_fp32",
       {{0, 1, -1, 2, 2.7, -2.7, -5, -10}},
       {{0, 0.841191990608, -0.158808009392, 1.95459769409, 2.6911124331, -0.0088875943,
         -2.29179619663e-7, -1.20409234821e-37}}},
      // The cube overflows no exponential and its tanh is -1 long before.
      {"gelu_tanh",
       "fp32_to_fp32",
       {{kInfinity, -kInfinity, -13, -20, -1e4, -3e38, 13, 20, 1e4, 3e38, kNaN}},
       {{kInfinity, -0.0, -0.0, -0.0, -0.0, -0.0, 13, 20, 1e4, 3e38, kNaN}}},
      {"gelu_tanh",
       "bf16_to_bf16",
       {{1, -1, 10.5, 16, 300, -10.5, -16}},
       {{0.83984375, -0.1591796875, 10.5, 16, 300, -0.0, -0.0}}},
      {"geglu",
       "erf_fp32_to_fp32_fused",
       {{0, 2, -1}, {3, 2, 4}},
       {{0, 3.9089994722, -0.634621015726}}},
      {"geglu",
       "tanh_fp32_to_fp32_fused",
       {{0, 2, -1}, {3, 2, 4}},
       {{0, 3.90919538818, -0.635232037568}}},
      // gelu alone is a subnormal number with 7 and 10 bits.
      {"geglu", "erf_fp32_to_fp32_fused", {{-14}, {0x1p100}}, {{-1.38312742775e-13}}},
      {"geglu", "tanh_fp32_to_fp32_fused", {{-10.5}, {0x1p100}}, {{-9.41217964655e-13}}},
      // gelu(-inf) is 0, which an infinite factor makes NaN.
      {"geglu",
       "erf_fp32_to_fp32_fused",
       {{-kInfinity, -kInfinity, -1e4, kInfinity, kNaN}, {2, kInfinity, 3e38, -2, 1}},
       {{-0.0, kNaN, -0.0, -kInfinity, kNaN}}},
      // 300 * 300 is beyond 65504.
      {"geglu", "tanh_fp16_to_fp16_fused", {{300, 2}, {300, 2}}, {{kInfinity, 3.91015625}}},
      {"geglu", "tanh_bf16_to_bf16_fused", {{300}, {300}}, {{90112}}},
      // gelu(1) = 0.84134 is 0.83984375 in BF16: 1.25 times it is 1.04980, or 1.05168 of the exact.
      {"geglu", "erf_bf16_to_bf16_fused", {{1}, {1.25}}, {{1.0546875}}},
      {"geglu", "erf_bf16_to_bf16_hf", {{1}, {1.25}}, {{1.046875}}},
      {"swiglu", "fp32_to_fp32_fused", {{0, 1}, {3, 2}}, {{0, 1.4621171572600098}}},
      {"swiglu",
       "fp32_to_fp32_fused",
       {{-3e38, -kInfinity, -1e4}, {3e38, 3e38, 3e38}},
       {{-0.0, -0.0, -0.0}}},
      // 255.9 is 255.875 in FP16: 255.875 * 261.75 = 66975.3 is beyond 65504.
      {"swiglu",
       "fp16_to_fp16_fused",
       {{255.9, 1, 255.9, 1}, {261.75, 1, 1, 1}},
       {{kInfinity, 0.73095703125, 255.875, 0.73095703125}},
       2},
      {"swiglu", "bf16_to_bf16_fused", {{255.9}, {261.75}}, {{67072}}},
      // silu(1.5) = 1.2263617, times 1.5 is 1.8395426: 1.8359375 in BF16. Stored in BF16 first it
      // is 1.2265625, times 1.5 is 1.83984375, a tie: 1.84375.
      {"swiglu", "bf16_to_bf16_fused", {{1.5, 2.5}, {1.5, 1.75}}, {{1.8359375, 4.03125}}},
      {"swiglu", "bf16_to_bf16_hf", {{1.5, 2.5}, {1.5, 1.75}}, {{1.84375, 4.0625}}},
      // Eager code's e^-x overflows from -88.72 on.
      {"swiglu",
       "fp32_to_fp32_hf",
       {{-88.5, -88.75, -kInfinity}, {1, 1, 1}},
       {{-3.24998698849e-37, -0.0, -0.0}}},
      {"rms_norm", "fp32_to_fp32_once", {{3, 4}}, {{0.848528132, 1.131370841}}},
      {"rms_norm", "fp32_to_fp32_once", {{0, 0, 0}}, {{0, 0, 0}}},
      {"rms_norm", "fp32_to_fp32_wfp32_offset", {{3, -4}, {1, -1}}, {{1.697056265, -0.0}}},
      {"rms_norm",
       "fp16_to_fp16_once",
       {{60000, -60000, 65504}},
       {{0.96923828125, -0.96923828125, 1.05859375}}},
      {"rms_norm",
       "fp32_to_fp32_once",
       {{1, kInfinity, 2, kNaN, 3, 4}},
       {{0, kNaN, kNaN, kNaN, 0.848528132, 1.131370841}},
       3},
      {"layer_norm",
       "fp32_to_fp32_wfp32_b",
       {{1, 2, 3, 6}, {1, 1, 1, 2}, {0, 0, 1, 1}},
       {{-1.069043441, -0.5345217203, 1, 4.207130323}}},
      // A constant row gives exactly the bias, in FP16 with the largest values too; one column is
      // a constant row.
      {"layer_norm",
       "fp16_to_fp16_wfp16_b",
       {{60000, 60000, 60000, 0.1, 0.1, 0.1, -3, -3, -3}, {2, 2, 2}, {0.5, -7, 0}},
       {{0.5, -7, 0, 0.5, -7, 0, 0.5, -7, 0}},
       3},
      {"layer_norm",
       "bf16_to_bf16_wbf16_b",
       {{7, -1e30, 3e-39}, {5}, {0.25}},
       {{0.25, 0.25, 0.25}},
       3},
      // A mean of 2^20, a deviation of 1: [-1, 0, 1] / sqrt(2/3 + 1e-5).
      {"layer_norm",
       "fp32_to_fp32",
       {{1048575, 1048576, 1048577}},
       {{-1.224735686, 0, 1.224735686}}},
      {"layer_norm",
       "fp32_to_fp32",
       {{1, kInfinity, 2, kNaN, -1, 1}},
       {{kNaN, kNaN, kNaN, kNaN, -0.9999950000, 0.9999950000}},
       3},
      {"softmax",
       "fp32_to_fp32",
       {{0, 0.6931471824645996, 1.6094379425048828}},
       {{0.125, 0.25, 0.625}}},
      {"softmax",
       "fp32_to_fp32",
       {{1e4, -1e4, -kInfinity, 3, -kInfinity, -kInfinity, -kInfinity, kInfinity, kNaN, 1, 3e38,
         -3e38}},
       {{1, 0, 0, 1, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, 1, 0}},
       6},
      {"softmax",
       "bf16_to_bf16",
       {{5, -kInfinity, 5, kNaN, kNaN, kNaN}},
       {{0.5, 0, 0.5, kNaN, kNaN, kNaN}},
       2},
      // Below FP32's and BF16's smallest normal results are kept: e^-100, e^-90.
      {"softmax", "fp32_to_fp32", {{0, -100}}, {{1, 3.720075976e-44}}},
      {"softmax", "bf16_to_bf16", {{0, -90}}, {{1, 8.19401262399e-40}}},
      {"softmax_masked",
       "fp32_to_fp32_mfp32",
       {{0, 1.0986122886681098, 7}, {0, 0, -kInfinity}},
       {{0.25, 0.75, 0}}},
      {"softmax_masked",
       "fp16_to_fp16_mfp16",
       {{1, 2, 3, 4, 5, 6, kNaN, 1, kInfinity, 2, -kInfinity, -kInfinity},
        {-kInfinity, -kInfinity, -kInfinity, 0, -kInfinity, -kInfinity, 0, -kInfinity, 0, 0, 0, 0}},
       {{0, 0, 0, 1, 0, 0, kNaN, kNaN, kNaN, kNaN, 0, 0}},
       6},
      // A NaN beside nothing but -inf is not an empty row, wherever it lies.
      {"softmax_masked",
       "fp32_to_fp32",
       {{kNaN, -kInfinity, -kInfinity, -kInfinity, kNaN, -kInfinity, -kInfinity, -kInfinity,
         -kInfinity}},
       {{kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, 0, 0, 0}},
       3},
      {"add_rms_norm",
       "fp32_hfp32_once_fused",
       {{1, 2}, {2, 2}},
       {{0.848528132, 1.131370841}, {3, 4}}},
      // 2048 + 1 is 2049 in FP32 and 2048 in FP16. Of [2049, 1500] and of [2048, 1500] the norms
      // are 2049 / 1795.60 = 1.14112 and 2048 / 1795.03 = 1.14093: 1.1416 and 1.1406 in FP16.
      {"add_rms_norm",
       "fp16_hfp16_once_fused",
       {{2048, 1500}, {1, 0}},
       {{1.1416015625, 0.83544921875}, {2048, 1500}}},
      {"add_rms_norm",
       "fp16_hfp16_once_hf",
       {{2048, 1500}, {1, 0}},
       {{1.140625, 0.83544921875}, {2048, 1500}}},
      {"add_rms_norm",
       "fp16_hfp32_once_fused",
       {{2048, 1500}, {1, 0}},
       {{1.1416015625, 0.83544921875}, {2049, 1500}}},
      {"add_rms_norm",
       "fp16_hfp32_once_hf",
       {{2048, 1500}, {1, 0}},
       {{1.140625, 0.83544921875}, {2048, 1500}}},
  };
  return *examples;
}

const Case* FindCase(const std::vector<Case>& cases, const std::string& name) {
  for (const Case& c : cases) {
    if (c.name == name) return &c;
  }
  return nullptr;
}

Tensor FromValues(DType dtype, const Values& values, int64_t rows) {
  const int64_t columns = static_cast<int64_t>(values.size()) / rows;
  Tensor tensor(dtype, rows, columns);
  for (int64_t i = 0; i < rows * columns; ++i) {
    tensor.Set(i / columns, i % columns, values[static_cast<size_t>(i)]);
  }
  return tensor;
}

TEST(Examples, WorkedByHand) {
  for (const Example& example : Examples()) {
    for (const KernelUnderTest& kernel : KernelsUnderTest()) {
      if (std::string(kernel.name) != example.kernel) continue;
      const std::vector<Case> cases = kernel.cases();
      const Case* c = FindCase(cases, example.of);
      ASSERT_NE(c, nullptr) << example.of;
      std::vector<Tensor> inputs;
      for (size_t i = 0; i < example.inputs.size(); ++i) {
        const bool shared = c->inputs[i].kind != OperandKind::kRows;
        inputs.push_back(
            FromValues(c->inputs[i].dtype, example.inputs[i], shared ? 1 : example.rows));
      }
      for (const Variant& variant : Variants(kernel.implementations())) {
        const std::vector<Tensor> got = RunCase(*c, variant, inputs);
        for (size_t i = 0; i < got.size(); ++i) {
          const Tensor want = FromValues(got[i].dtype(), example.outputs[i], example.rows);
          Bound bound;
          bound.fp32_roundings = got[i].dtype() == DType::kF32 ? 8 : 0;
          const Comparison comparison = Compare(want, got[i], bound);
          EXPECT_TRUE(comparison.within)
              << example.kernel << " " << example.of << " on " << variant.label << ", "
              << c->outputs[i].name << ": " << comparison.message;
        }
      }
    }
  }
}

TEST(Examples, EmbeddingCopiesRows) {
  for (const KernelUnderTest& kernel : KernelsUnderTest()) {
    if (std::string(kernel.name) != "embedding") continue;
    for (const Case& c : kernel.cases()) {
      if (c.name.find("scaled") != std::string::npos) continue;
      std::vector<Tensor> inputs;
      inputs.push_back(FromValues(c.inputs[0].dtype, {1, 0}, 2));
      inputs.push_back(FromValues(c.inputs[1].dtype, {1, 2, 3, 4}, 2));
      const Tensor want = FromValues(c.outputs[0].dtype, {3, 4, 1, 2}, 2);
      for (const Variant& variant : Variants(kernel.implementations())) {
        EXPECT_EQ(FirstDifference(want, RunCase(c, variant, inputs)[0]), "") << variant.label;
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
