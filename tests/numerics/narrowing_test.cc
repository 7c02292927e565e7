// The rounding of FP32 to 16 bits that ends every kernel: to nearest even, subnormals and
// infinities kept, NaN for NaN and for nothing else. Read off the residual addition, whose sum is
// exact or one FP32 addition, so that every bit is known.
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/half.h"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

// A permutation of the 16-bit numbers, so that a vector holds values of all kinds.
uint32_t Scattered(uint32_t i) { return (i * 40503u + 12345u) & 0xFFFFu; }

template <typename T>
std::vector<T> Elements(const Tensor& tensor) {
  const auto* data = reinterpret_cast<const T*>(tensor.Data(tensor.memory()));
  return {data, data + tensor.rows() * tensor.columns()};
}

template <typename T>
std::vector<Tensor> Operands(DType dtype, const std::vector<T>& x, T r) {
  std::vector<Tensor> operands;
  const auto columns = static_cast<int64_t>(x.size());
  for (int i = 0; i < 2; ++i) {
    operands.emplace_back(dtype, 1, columns);
    auto* to = reinterpret_cast<T*>(operands.back().Data(operands.back().memory()));
    for (int64_t j = 0; j < columns; ++j) to[j] = i == 0 ? x[static_cast<size_t>(j)] : r;
  }
  return operands;
}

template <typename Out>
void ExpectRounded(const std::vector<float>& sums, const Tensor& got, const std::string& where) {
  const std::vector<Out> found = Elements<Out>(got);
  ASSERT_EQ(found.size(), sums.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    const Out want = FromFloat<Out>(sums[i]);
    const bool both_nan = std::isnan(sums[i]) && std::isnan(ToFloat(found[i]));
    ASSERT_TRUE(both_nan || found[i].bits == want.bits)
        << where << ", sum " << sums[i] << ": " << std::hex << found[i].bits << ", not "
        << want.bits;
  }
}

template <typename Out>
class Narrowing : public ::testing::Test {
 protected:
  static constexpr bool kBrain = std::is_same_v<Out, BFloat16>;
  DType dtype() const { return kBrain ? DType::kBF16 : DType::kF16; }
  std::string label() const { return kBrain ? "bf16" : "fp16"; }
};

using SixteenBitTypes = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(Narrowing, SixteenBitTypes);

// Every upper half of an FP32 number with lower halves at and around a tie.
TYPED_TEST(Narrowing, OfFp32) {
  std::vector<float> x;
  for (uint32_t i = 0; i < 65536; ++i) {
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      x.push_back(std::bit_cast<float>(Scattered(i) << 16 | low));
    }
  }
  std::vector<Tensor> operands = Operands(DType::kF32, x, -0.0f);  // x + -0 is x
  for (const Variant& variant : Variants(Kernel("add_residual").implementations())) {
    const auto got =
        RunNamedCase("add_residual", "fp32_fp32_to_" + this->label(), variant, operands);
    ExpectRounded<TypeParam>(x, got.at(0), variant.label);
  }
}

// Every 16-bit number and a second one of its type: sums that overflow, cancel and need rounding.
TYPED_TEST(Narrowing, OfSumsOfSixteenBits) {
  std::vector<TypeParam> x;
  for (uint32_t i = 0; i < 65536; ++i) x.push_back({static_cast<uint16_t>(Scattered(i))});
  const TypeParam largest = {static_cast<uint16_t>(FromFloat<TypeParam>(INFINITY).bits - 1)};
  const std::string bits = this->label();
  for (const TypeParam r :
       {FromFloat<TypeParam>(-0.0f), FromFloat<TypeParam>(1.0078125f), TypeParam{1}, largest,
        FromFloat<TypeParam>(-INFINITY), FromFloat<TypeParam>(NAN)}) {
    std::vector<float> sums;
    for (const TypeParam value : x) sums.push_back(ToFloat(value) + ToFloat(r));
    std::vector<Tensor> operands = Operands(this->dtype(), x, r);
    for (const Variant& variant : Variants(Kernel("add_residual").implementations())) {
      const auto got = RunNamedCase("add_residual", absl::StrCat(bits, "_", bits, "_to_", bits),
                                    variant, operands);
      ExpectRounded<TypeParam>(sums, got.at(0), absl::StrCat(variant.label, ", r ", ToFloat(r)));
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
