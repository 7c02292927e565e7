// Reductions of rows that hold nothing, and of rows with one NaN, wherever it lies.
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/block_reduce/block_reduce.h"
#include "kernels/warp_reduce/warp_reduce.h"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor Reduced(const char* kernel_name, const std::string& case_name, const Variant& variant,
               Tensor x) {
  for (const KernelUnderTest& kernel : KernelsUnderTest()) {
    if (std::string(kernel.name) != kernel_name) continue;
    for (const Case& c : kernel.cases()) {
      if (c.name != case_name) continue;
      std::vector<Tensor> inputs;
      inputs.push_back(std::move(x));
      return RunCase(c, variant, inputs)[0].Copy();
    }
  }
  ADD_FAILURE() << "no case " << kernel_name << " " << case_name;
  return Tensor(DType::kF32, 0, 1);
}

class RowReduce : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<Variant> variants() const {
    return Variants(DescribeList(GetParam() == std::string("warp_reduce")
                                     ? WarpReduceRowsImplementations()
                                     : BlockReduceRowsImplementations()));
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, RowReduce, ::testing::Values("warp_reduce", "block_reduce"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(RowReduce, NoColumnsGiveTheIdentity) {
  for (const Variant& variant : variants()) {
    const Tensor sums = Reduced(GetParam(), "sum_fp16_to_fp16", variant, Tensor(DType::kF16, 3, 0));
    const Tensor maxima =
        Reduced(GetParam(), "max_bf16_to_fp32", variant, Tensor(DType::kBF16, 3, 0));
    for (int64_t row = 0; row < 3; ++row) {
      EXPECT_EQ(sums.Bits(row, 0), 0u) << variant.label;
      EXPECT_EQ(maxima.At(row, 0), -kInfinity) << variant.label;
    }
  }
}

// One row for every place of the NaN; the rows beside it stay what they are.
TEST_P(RowReduce, ANanAnywhereIsTheMaximumOfItsRow) {
  for (const int64_t columns : {1, 2, 5, 16, 31, 32, 33, 100}) {
    for (const Variant& variant : variants()) {
      Tensor x(DType::kF32, 2 * columns, columns);
      for (int64_t row = 0; row < x.rows(); ++row) {
        for (int64_t i = 0; i < columns; ++i) {
          x.Set(row, i, row % 2 == 0 && i == row / 2 ? std::nan("") : static_cast<double>(i - 9));
        }
      }
      const Tensor got = Reduced(GetParam(), "max_fp32_to_fp32", variant, std::move(x));
      for (int64_t row = 0; row < got.rows(); ++row) {
        if (row % 2 == 0) {
          ASSERT_TRUE(std::isnan(got.At(row, 0))) << variant.label << ", " << columns << " columns";
        } else {
          ASSERT_EQ(got.At(row, 0), static_cast<double>(columns - 10)) << variant.label;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
