// Rung 5 of the numerical ladder: fused kernels against the composition of their parts, bit for
// bit, on every implementation (one and the same for both sides).
#include "gtest/gtest.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

Tensor Filled(DType dtype, int64_t rows, int64_t columns, uint64_t seed) {
  Tensor tensor(dtype, rows, columns);
  Fill(tensor, Pattern::kNormal, 1e4, seed);
  return tensor;
}

Tensor Constant(DType dtype, int64_t rows, int64_t columns, double value) {
  Tensor tensor(dtype, rows, columns);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) tensor.Set(row, column, value);
  }
  return tensor;
}

template <typename... T>
std::vector<Tensor> List(const T&... tensors) {
  std::vector<Tensor> list;
  (list.push_back(tensors.Copy()), ...);
  return list;
}

class Composed : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  std::string label() const { return std::string(Traits(dtype()).label); }
};

// hf: the sum is stored in the dtype, then normalised: exactly the two kernels in turn.
TEST_P(Composed, RoundedSumThenNorm) {
  const Tensor x = Filled(dtype(), 7, 577, 11), r = Filled(dtype(), 7, 577, 12);
  const Tensor w = Filled(dtype(), 1, 577, 13);
  for (const Variant& variant : Variants(Kernel("add_rms_norm").implementations())) {
    for (const std::string mode : {"once", "first", "offset"}) {
      auto both = List(x, r, w);
      const auto fused = RunNamedCase(
          "add_rms_norm", label() + "_w" + label() + "_h" + label() + "_" + mode + "_hf", variant,
          both);
      auto parts = List(x, r);
      const auto sum =
          RunNamedCase("add_residual", label() + "_" + label() + "_to_" + label(), variant, parts);
      auto norm_inputs = List(sum[0], w);
      const auto norm =
          RunNamedCase("rms_norm", label() + "_to_" + label() + "_w" + label() + "_" + mode,
                       variant, norm_inputs);
      EXPECT_EQ(FirstDifference(fused[0], norm[0]), "") << variant.label << " " << mode;
      EXPECT_EQ(FirstDifference(fused[1], sum[0]), "") << variant.label << " " << mode;
    }
  }
}

// fused: the sum stays in FP32: the two kernels in turn with an FP32 tensor between them. The FP64
// reference does not round between, so it has no such composition.
TEST_P(Composed, UnroundedSumThenNorm) {
  const Tensor x = Filled(dtype(), 7, 577, 21), r = Filled(dtype(), 7, 577, 22);
  for (const Variant& variant : Variants(Kernel("add_rms_norm").implementations())) {
    if (variant.implementation == "reference") continue;
    auto both = List(x, r);
    const auto fused = RunNamedCase("add_rms_norm", label() + "_hfp32_once_fused", variant, both);
    auto parts = List(x.Cast(DType::kF32), r.Cast(DType::kF32));
    const auto sum = RunNamedCase("add_residual", "fp32_fp32_to_fp32", variant, parts);
    auto norm_inputs = List(sum[0]);
    const auto norm =
        RunNamedCase("rms_norm", "fp32_to_" + label() + "_once", variant, norm_inputs);
    EXPECT_EQ(FirstDifference(fused[0], norm[0]), "") << variant.label;
    EXPECT_EQ(FirstDifference(fused[1], sum[0]), "") << variant.label;
  }
}

TEST_P(Composed, AddingNothingIsTheNorm) {
  const Tensor x = Filled(dtype(), 5, 130, 31);
  for (const Variant& variant : Variants(Kernel("add_rms_norm").implementations())) {
    auto both = List(x, Constant(dtype(), 5, 130, 0.0));
    const auto fused = RunNamedCase("add_rms_norm", label() + "_once_fused", variant, both);
    auto alone = List(x);
    const auto norm =
        RunNamedCase("rms_norm", label() + "_to_" + label() + "_once", variant, alone);
    EXPECT_EQ(FirstDifference(fused[0], norm[0]), "") << variant.label;
  }
}

// up = 1 leaves silu.
TEST_P(Composed, SwiGluOfOnesIsSilu) {
  const Tensor gate = Filled(dtype(), 5, 259, 41);
  for (const Variant& variant : Variants(Kernel("swiglu").implementations())) {
    auto both = List(gate, Constant(dtype(), 5, 259, 1.0));
    const auto fused = RunNamedCase("swiglu", label() + "_to_" + label() + "_fused", variant, both);
    auto alone = List(gate);
    const auto silu = RunNamedCase("silu", label() + "_to_" + label(), variant, alone);
    EXPECT_EQ(FirstDifference(fused[0], silu[0]), "") << variant.label;
  }
}

// One packed tensor with the gate half first is two tensors; its result may overwrite either half.
TEST_P(Composed, PackedSwiGluIsSwiGlu) {
  for (const int64_t d : {1, 2, 3, 4, 5, 100}) {
    const Tensor packed = Filled(dtype(), 4, 2 * d, 51);
    Tensor gate(dtype(), 4, d), up(dtype(), 4, d), want(dtype(), 4, d);
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t column = 0; column < d; ++column) {
        gate.Set(row, column, packed.At(row, column));
        up.Set(row, column, packed.At(row, d + column));
      }
    }
    const ExecutionContext context;
    const auto view = [&](const Tensor& tensor, int64_t column, int64_t columns) {
      TensorView v(tensor.memory() + column * SizeOf(dtype()), dtype(), {4, columns});
      v.stride[0] = tensor.columns();
      return v;
    };
    ASSERT_TRUE(
        SwiGlu(context, view(gate, 0, d), view(up, 0, d), Rounding::kHf, view(want, 0, d)).ok());
    for (const int64_t half : {0, 1}) {
      const Tensor over = packed.Copy();
      const absl::Status status =
          SwiGluPacked(context, view(over, 0, 2 * d), Rounding::kHf, view(over, half * d, d));
      ASSERT_TRUE(status.ok()) << status;
      for (int64_t row = 0; row < 4; ++row) {
        for (int64_t column = 0; column < d; ++column) {
          ASSERT_EQ(over.Bits(row, half * d + column), want.Bits(row, column)) << d;
          ASSERT_EQ(over.Bits(row, (1 - half) * d + column),
                    packed.Bits(row, (1 - half) * d + column));
        }
      }
    }
  }
}

TEST_P(Composed, PackedSwiGluOfNothing) {
  const ExecutionContext context;
  for (const int64_t d : {0, 7, 3584}) {
    EXPECT_TRUE(SwiGluPacked(context, ConstTensorView(nullptr, dtype(), {0, 2 * d}),
                             Rounding::kFused, TensorView(nullptr, dtype(), {0, d}))
                    .ok());
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Composed, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& dtype) { return std::string(Traits(dtype.param).label); });

}  // namespace
}  // namespace fuseblock::testing
