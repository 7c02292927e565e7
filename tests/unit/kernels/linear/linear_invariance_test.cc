// A row's bits: the same alone and in any batch, at any position, with any number of threads, from
// any address and stride, run to run, and on every instruction set with a fused multiply-add, but
// for AMX, whose order is its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "server/engine/cpu_team.h"
#include "tests/unit/kernels/linear/linear_cases.h"

namespace fuseblock::testing {
namespace {

constexpr int64_t kRows = 257;

class LinearInvarianceTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, LinearInvarianceTest, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

// Every row by itself.
HostTensor RowsAlone(const Variant& variant, const HostTensor& x, const LinearWeight& weight,
                     DType y_dtype) {
  HostTensor alone(y_dtype, {x.rows(), weight.n()});
  for (int64_t m = 0; m < x.rows(); ++m) {
    RunVariant(variant, ConstTensorView(x.row(m), x.dtype(), {1, x.cols()}), weight,
               TensorView(alone.row(m), y_dtype, {1, weight.n()}));
  }
  return alone;
}

// [first, first + count) of `rows` as one batch is what the rows are alone.
void ExpectBatch(const Variant& variant, const HostTensor& x, const LinearWeight& weight,
                 const HostTensor& alone, int64_t first, int64_t count,
                 const ParallelFor& parallel_for) {
  HostTensor y(alone.dtype(), {count, weight.n()});
  RunVariant(variant, ConstTensorView(x.row(first), x.dtype(), {count, x.cols()}), weight, y.view(),
             parallel_for);
  ASSERT_TRUE(SameRows(y, 0, alone, first, count))
      << variant.label << ": rows " << first << " to " << first + count << ", threads "
      << parallel_for.threads;
}

TEST_P(LinearInvarianceTest, EveryBatchSizeAtSeveralPositions) {
  CpuTeam team(2);
  // Three segments, the last one odd; two panels, the last one of 6 outputs.
  const HostTensor w = NormalTensor(GetParam(), {70, 149}, 1);
  const HostTensor b = NormalTensor(GetParam(), {70}, 2);
  const LinearWeight weight = Prepared(w, &b);
  const HostTensor x = NormalTensor(GetParam(), {kRows, 149}, 3);
  for (const Variant& variant : LinearVariantsFor(weight)) {
    const bool every = IsFast(variant);
    for (const DType y_dtype : {GetParam(), DType::kF32}) {
      const HostTensor alone = RowsAlone(variant, x, weight, y_dtype);
      for (int64_t count = 1; count <= kRows; count += every || count < 8 ? 1 : 31) {
        const ParallelFor threads = count % 2 == 0 ? team.parallel_for() : ParallelFor();
        for (const int64_t first : {int64_t{0}, (kRows - count) / 2, kRows - count}) {
          ASSERT_NO_FATAL_FAILURE(ExpectBatch(variant, x, weight, alone, first, count, threads));
        }
      }
      for (int run = 0; run < 10; ++run) {  // run to run, on two threads and on one
        ASSERT_NO_FATAL_FAILURE(
            ExpectBatch(variant, x, weight, alone, 0, kRows, team.parallel_for()));
        ASSERT_NO_FATAL_FAILURE(ExpectBatch(variant, x, weight, alone, 0, kRows, {}));
      }
      if (y_dtype == DType::kF32) break;
    }
  }
}

TEST_P(LinearInvarianceTest, AnyAddressAndStride) {
  const HostTensor w = NormalTensor(GetParam(), {70, 149}, 1);
  const LinearWeight weight = Prepared(w);
  const HostTensor x = NormalTensor(GetParam(), {13, 149}, 3);
  for (const Variant& variant : LinearVariantsFor(weight)) {
    const HostTensor alone = RowsAlone(variant, x, weight, GetParam());
    for (const size_t offset : {0, 1, 2, 4, 6, 33}) {
      for (const int64_t gap : {0, 1, 3, 64}) {
        HostTensor moved(GetParam(), {13, 149}, gap, offset);
        for (int64_t m = 0; m < 13; ++m) std::memcpy(moved.row(m), x.row(m), x.row_bytes());
        HostTensor y(GetParam(), {13, 70}, gap, offset);
        RunVariant(variant, moved.view(), weight, y.view());
        ASSERT_TRUE(SameRows(y, 0, alone, 0, 13))
            << variant.label << ", offset " << offset << ", gap " << gap;
        ASSERT_TRUE(y.GuardsIntact());
      }
    }
  }
}

// Where BF16 fills an odd K up to a pair, what an earlier call left behind does not count.
TEST_P(LinearInvarianceTest, NothingIsLeftOfAnEarlierCall) {
  for (const int64_t k : {1, 3, 31, 63}) {
    const HostTensor w = NormalTensor(GetParam(), {70, k}, 1);
    const HostTensor longer = NormalTensor(GetParam(), {70, k + 1}, 2);
    const LinearWeight weight = Prepared(w), longer_weight = Prepared(longer);
    const HostTensor x = NormalTensor(GetParam(), {9, k}, 3);
    HostTensor nan(GetParam(), {9, k + 1});
    nan.fill(NAN);
    for (const Variant& variant : LinearVariantsFor(weight)) {
      HostTensor y(GetParam(), {9, 70});
      RunVariant(variant, nan.view(), longer_weight, y.view());
      RunVariant(variant, x.view(), weight, y.view());
      Worst worst;
      Compare(y, x, w, nullptr, worst);
      ASSERT_LE(worst.ratio, 1) << variant.label << ": " << worst.text;
    }
  }
}

// The chain is the same on every instruction set with a fused multiply-add but AMX, so a mixed
// fleet of such machines gives the same bits. (Normal values: VDPBF16PS takes subnormal ones for
// zero.)
TEST_P(LinearInvarianceTest, InstructionSetsAgree) {
  const HostTensor w = NormalTensor(GetParam(), {130, 577}, 1);
  const HostTensor b = NormalTensor(GetParam(), {130}, 2);
  const LinearWeight weight = Prepared(w, &b);
  const HostTensor x = NormalTensor(GetParam(), {50, 577}, 3);
  std::optional<HostTensor> first;
  for (const Variant& variant : LinearVariantsFor(weight)) {
    if (!IsFast(variant)) continue;
    HostTensor y(DType::kF32, {50, 130});
    RunVariant(variant, x.view(), weight, y.view());
    if (first.has_value()) {
      EXPECT_TRUE(SameRows(y, 0, *first, 0, 50)) << variant.label;
    } else {
      first = y;
    }
  }
}

// One output in the order that linear_tasks.h states.
float SumBySegments(const HostTensor& x, int64_t m, const HostTensor& w, int64_t n) {
  constexpr int64_t kOrderSegment = 64;
  float total = 0;
  for (int64_t segment = 0; segment < x.cols(); segment += kOrderSegment) {
    const int64_t end = std::min(x.cols(), segment + kOrderSegment);
    float sum = 0;
    for (int64_t k = segment; k < end; ++k) {
      sum = std::fma(static_cast<float>(x.at(m, k)), static_cast<float>(w.at(n, k)), sum);
    }
    total += sum;
  }
  return total;
}

// With rows on both sides of a tile and of a task, panels on both sides of a task, and steps on
// both sides of the block that a task stages at a time.
TEST_P(LinearInvarianceTest, EveryRowIsSummedInTheStatedOrder) {
  CpuTeam team(2);
  for (const int64_t k : {1, 63, 129, 1055}) {
    const HostTensor w = NormalTensor(GetParam(), {17 * 64 + 6, k}, 1);
    const HostTensor x = NormalTensor(GetParam(), {273, k}, 2);
    const LinearWeight weight = Prepared(w);
    for (const Variant& variant : LinearVariantsFor(weight)) {
      if (!IsFast(variant)) continue;
      for (const int64_t rows : {1, 6, 7, 128, 273}) {
        HostTensor y(DType::kF32, {rows, w.rows()});
        RunVariant(variant, ConstTensorView(x.row(0), GetParam(), {rows, k}), weight, y.view(),
                   rows == 128 ? ParallelFor() : team.parallel_for());
        for (const int64_t m : {int64_t{0}, rows / 2, rows - 1}) {
          for (int64_t n = 0; n < w.rows(); n += n < 64 ? 1 : 61) {
            ASSERT_EQ(static_cast<float>(y.at(m, n)), SumBySegments(x, m, w, n))
                << variant.label << ", K " << k << ", rows " << rows << ": " << m << ", " << n;
          }
        }
      }
    }
  }
}

// One output in the order that linear_amx_bf16.cc states.
float SumByTiles(const HostTensor& x, int64_t m, const HostTensor& w, int64_t n) {
  constexpr int64_t kSteps = 32, kOrderSegment = 1024;
  float total = 0;
  for (int64_t segment = 0; segment < x.cols(); segment += kOrderSegment) {
    const int64_t end = std::min(x.cols(), segment + kOrderSegment);
    float sum = 0;
    for (int64_t begin = segment; begin < end; begin += kSteps) {
      float chains[2] = {0, 0};
      for (int64_t k = begin; k < std::min(end, begin + kSteps); ++k) {
        float& chain = chains[k % 2];
        chain = std::fma(static_cast<float>(x.at(m, k)), static_cast<float>(w.at(n, k)), chain);
      }
      sum += chains[0] + chains[1];
    }
    total += sum;
  }
  return total;
}

// Over whole, cut and unequal blocks and segments of K, with rows on both sides of a tile and of a
// chunk, and panels on both sides of a task.
TEST(LinearTiles, EveryRowIsSummedInTheStatedOrder) {
  CpuTeam team(2);
  for (const int64_t k : {1, 33, 256, 577, 1055, 2304}) {
    const HostTensor w = NormalTensor(DType::kBF16, {2 * 16 * 2 * 64 + 70, k}, 1);
    const HostTensor x = NormalTensor(DType::kBF16, {273, k}, 2);
    const LinearWeight weight = Prepared(w);
    for (const Variant& variant : LinearVariantsFor(weight)) {
      if (variant.implementation != "amx_bf16") continue;
      for (const int64_t rows : {1, 16, 17, 273}) {
        HostTensor y(DType::kF32, {rows, w.rows()});
        RunVariant(variant, ConstTensorView(x.row(0), DType::kBF16, {rows, k}), weight, y.view(),
                   rows == 17 ? ParallelFor() : team.parallel_for());
        for (const int64_t m : {int64_t{0}, rows / 2, rows - 1}) {
          for (int64_t n = 0; n < w.rows(); n += n < 64 ? 1 : 61) {
            ASSERT_EQ(static_cast<float>(y.at(m, n)), SumByTiles(x, m, w, n))
                << "K " << k << ", rows " << rows << ": " << m << ", " << n;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
