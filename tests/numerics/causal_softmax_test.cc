// The causal softmax's mask, on every implementation: against the reference, by hand, and what must
// not change a bit.
#include "kernels/causal_softmax/causal_softmax.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/causal.h"
#include "kernels/base/status.h"
#include "tests/numerics/cases.h"
#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

struct Size {
  int64_t batches, queries, keys;
};
constexpr Size kSizes[] = {{1, 1, 1},     {2, 1, 17},   {1, 5, 3},    {3, 5, 3},    {2, 3, 5},
                           {2, 17, 17},   {3, 31, 33},  {1, 65, 64},  {2, 40, 257}, {1, 9, 576},
                           {1, 600, 300}, {1, 6, 2051}, {1, 3, 4100}, {1, 3, 8200}, {1, 3, 16500}};

std::string Name(const Size& size) {
  return absl::StrCat("[", size.batches, ", ", size.queries, ", ", size.keys, "]");
}

std::vector<Variant> AllVariants() {
  return Variants(DescribeList(CausalSoftmaxImplementations()));
}

// [batches * queries, keys] as [batches, queries, keys].
TensorView Batched(const TensorView& rows, int64_t queries) {
  TensorView view = rows;
  view.rank = 3;
  view.shape = {rows.shape[0] / queries, queries, rows.shape[1]};
  view.stride = {rows.stride[0] * queries, rows.stride[0], 1};
  return view;
}

void RunInto(const Variant& variant, Tensor& x, int64_t queries, float scale, Tensor& y,
             const ParallelFor& parallel_for = {}) {
  const ScopedVariant scoped(variant);
  const absl::Status status = RunPlaced(
      variant.device, {{&x}, {&y}}, parallel_for,
      [&](const ExecutionContext& context, absl::Span<const TensorView> views) -> absl::Status {
        FUSEBLOCK_ASSIGN_OR_RETURN(
            const auto args,
            CheckCausalSoftmax(Batched(views[0], queries), scale, Batched(views[1], queries)));
        return RunNamed(CausalSoftmaxImplementations(), variant.implementation, context, args);
      });
  ASSERT_TRUE(status.ok()) << variant.label << ": " << status;
  ASSERT_TRUE(y.GuardsIntact()) << variant.label << " writes beyond y";
}

Tensor Causal(const Variant& variant, Tensor& x, int64_t queries, float scale, DType out,
              Layout layout = {}, const ParallelFor& parallel_for = {}) {
  Tensor y(out, x.rows(), x.columns(), layout);
  RunInto(variant, x, queries, scale, y, parallel_for);
  return y;
}

Tensor Scores(DType dtype, const Size& size, Pattern pattern, uint64_t seed) {
  Tensor x(dtype, size.batches * size.queries, size.keys);
  Fill(x, pattern, 1e300, seed);
  return x;
}

Tensor FromValues(DType dtype, int64_t rows, const std::vector<double>& values) {
  const int64_t columns = static_cast<int64_t>(values.size()) / rows;
  Tensor tensor(dtype, rows, columns);
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    tensor.Set(at / columns, at % columns, values[i]);
  }
  return tensor;
}

int64_t Kept(int64_t row, const Size& size) {
  return CausalKept(row % size.queries, size.queries, size.keys);
}

void ExpectZeroBeyond(const Tensor& y, const Size& size, const std::string& where) {
  for (int64_t row = 0; row < y.rows(); ++row) {
    for (int64_t key = Kept(row, size); key < size.keys; ++key) {
      ASSERT_EQ(y.Bits(row, key), 0u) << where << ", row " << row << ", key " << key;
    }
  }
}

class CausalSoftmaxTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, CausalSoftmaxTest, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) {
                           return std::string(fuseblock::Name(tested.param));
                         });

TEST(CausalSoftmaxKept, IsAlignedToTheLastQuery) {
  EXPECT_EQ(CausalKept(0, 1, 17), 17);
  EXPECT_EQ(CausalKept(0, 4, 4), 1);
  EXPECT_EQ(CausalKept(3, 4, 4), 4);
  EXPECT_EQ(CausalKept(1, 5, 3), 0);
  EXPECT_EQ(CausalKept(2, 5, 3), 1);
  EXPECT_EQ(CausalKept(0, 3, 5), 3);
  std::vector<int> times(7);
  for (int64_t turn = 0; turn < 7; ++turn) ++times[static_cast<size_t>(CausalQueryInTurn(turn, 7))];
  EXPECT_EQ(times, std::vector<int>(7, 1)) << "each query has one turn";
}

TEST_P(CausalSoftmaxTest, ByHand) {
  Tensor square = FromValues(GetParam(), 2, {0, 7, 0, std::log(3.0)});
  Tensor more_queries =
      FromValues(GetParam(), 5, {9, 9, 9, 9, 9, 9, 2, kNaN, kInfinity, 3, 3, 9, 1, 1, -kInfinity});
  Tensor more_keys = FromValues(GetParam(), 2, {1, 1, 1, 5, -kInfinity, 2, -kInfinity, -kInfinity});
  for (const Variant& variant : AllVariants()) {
    const Tensor a = Causal(variant, square, 2, 1.0f, GetParam());
    EXPECT_EQ(a.At(0, 0), 1) << variant.label;
    EXPECT_EQ(a.At(0, 1), 0) << variant.label;
    EXPECT_NEAR(a.At(1, 0), 0.25, Traits(GetParam()).epsilon) << variant.label;
    EXPECT_NEAR(a.At(1, 1), 0.75, Traits(GetParam()).epsilon) << variant.label;
    const Tensor b = Causal(variant, more_queries, 5, 1.0f, GetParam());
    const Tensor want =
        FromValues(GetParam(), 5, {0, 0, 0, 0, 0, 0, 1, 0, 0, 0.5, 0.5, 0, 0.5, 0.5, 0});
    EXPECT_EQ(FirstDifference(want, b), "") << variant.label;
    const Tensor c = Causal(variant, more_keys, 2, 1.0f, GetParam());
    const double third = RoundedTo(GetParam(), 1.0 / 3);
    EXPECT_NEAR(c.At(0, 0), third, Traits(GetParam()).epsilon / 2) << variant.label;
    EXPECT_EQ(c.At(0, 3), 0) << variant.label;
    EXPECT_EQ(c.At(1, 0), 0) << variant.label;
    EXPECT_EQ(c.At(1, 1), 1) << variant.label;
  }
}

// A query whose kept scores are all -inf gives zeros; NaN and +inf stay in their query.
TEST_P(CausalSoftmaxTest, WhatIsNotFiniteStaysInItsQuery) {
  Tensor x = FromValues(GetParam(), 4,
                        {-kInfinity, 1, 1, 1,     //
                         kNaN, -kInfinity, 1, 1,  //
                         0, kInfinity, 0, 1,      //
                         0, -kInfinity, -kInfinity, 0});
  const Tensor want = FromValues(GetParam(), 4,
                                 {0, 0, 0, 0,           //
                                  kNaN, kNaN, 0, 0,     //
                                  kNaN, kNaN, kNaN, 0,  //
                                  0.5, 0, 0, 0.5});
  for (const Variant& variant : AllVariants()) {
    const Tensor got = Causal(variant, x, 4, 1.0f, GetParam());
    EXPECT_EQ(FirstDifference(want, got), "") << variant.label;
  }
}

TEST_P(CausalSoftmaxTest, MatchesTheReference) {
  const Variant reference{"reference", DeviceType::kCpu, 0, "reference"};
  uint64_t seed = 700;
  for (const Size& size : kSizes) {
    for (const Pattern pattern : {Pattern::kNormal, Pattern::kAdversarial, Pattern::kNotFinite}) {
      for (const float scale : {1.0f, 0.25f, 0.3f}) {
        // A product that is rounded costs its magnitude, which must stay small.
        if (scale == 0.3f && pattern != Pattern::kNormal) continue;
        Tensor x = Scores(GetParam(), size, pattern, ++seed);
        Tensor wide = x.Cast(DType::kF32);
        const Tensor expected = Causal(reference, wide, size.queries, scale, DType::kF32);
        Bound bound;
        bound.fp32_roundings = CausalSoftmaxRoundings(GetParam(), size.keys);
        for (const Variant& variant : AllVariants()) {
          const std::string where =
              absl::StrCat(variant.label, ", ", Name(size), ", scale ", scale, ", seed ", seed);
          const Tensor got = Causal(variant, x, size.queries, scale, GetParam());
          const Comparison comparison = Compare(expected, got, bound);
          EXPECT_TRUE(comparison.within) << where << ": " << comparison.message;
          ExpectZeroBeyond(got, size, where);
        }
      }
    }
  }
}

TEST_P(CausalSoftmaxTest, MaskedScoresReachNothing) {
  for (const Size& size : kSizes) {
    Tensor x = Scores(GetParam(), size, Pattern::kNormal, 5);
    Tensor other = x.Copy();
    for (int64_t row = 0; row < x.rows(); ++row) {
      for (int64_t key = Kept(row, size); key < size.keys; ++key) {
        other.Set(row, key, key % 2 == 0 ? kNaN : kInfinity);
      }
    }
    for (const Variant& variant : AllVariants()) {
      EXPECT_EQ(FirstDifference(Causal(variant, x, size.queries, 1.0f, GetParam()),
                                Causal(variant, other, size.queries, 1.0f, GetParam())),
                "")
          << variant.label << ", " << Name(size);
    }
  }
}

// The class of a number of keys on CUDA (causal_softmax.h), within which bits are equal.
int CudaClass(int64_t keys) {
  int found = 0;
  for (const int64_t end : {512, 1024, 2048, 4096, 8192, 16384}) found += keys > end;
  return found;
}

TEST_P(CausalSoftmaxTest, ARowIsTheSoftmaxOfItsPrefix) {
  for (const Size& size : kSizes) {
    Tensor x = Scores(GetParam(), size, Pattern::kNormal, 6);
    for (const Variant& variant : AllVariants()) {
      const Tensor all = Causal(variant, x, size.queries, 0.5f, GetParam());
      for (int64_t row = 0; row < x.rows(); row += 1 + x.rows() / 12) {
        const int64_t kept = Kept(row, size);
        if (kept == 0) continue;
        const bool cuda = variant.device == DeviceType::kCuda;
        if (cuda && CudaClass(kept) != CudaClass(size.keys)) continue;
        Tensor prefix(GetParam(), 1, kept), of_all(GetParam(), 1, kept);
        for (int64_t key = 0; key < kept; ++key) {
          prefix.Set(0, key, x.At(row, key));
          of_all.Set(0, key, all.At(row, key));
        }
        EXPECT_EQ(FirstDifference(Causal(variant, prefix, 1, 0.5f, GetParam()), of_all), "")
            << variant.label << ", " << Name(size) << ", row " << row;
      }
    }
  }
}

TEST_P(CausalSoftmaxTest, LayoutPlaceAndThreadsChangeNoBit) {
  for (const Size& size : kSizes) {
    Tensor x = Scores(GetParam(), size, Pattern::kNormal, 7);
    for (const Variant& variant : AllVariants()) {
      const std::string where = absl::StrCat(variant.label, ", ", Name(size));
      const Tensor plain = Causal(variant, x, size.queries, 1.0f, GetParam());
      for (const Layout layout : {Layout{1, 0}, Layout{0, 8}, Layout{3, 5}}) {
        Tensor moved = x.Copy(layout);
        EXPECT_EQ(
            FirstDifference(plain, Causal(variant, moved, size.queries, 1.0f, GetParam(), layout)),
            "")
            << where << ", offset " << layout.offset << ", padding " << layout.padding;
      }
      Tensor over = x.Copy();
      RunInto(variant, over, size.queries, 1.0f, over);
      EXPECT_EQ(FirstDifference(plain, over), "") << where << ", in place";
      EXPECT_EQ(FirstDifference(
                    plain, Causal(variant, x, size.queries, 1.0f, GetParam(), {}, ThreeThreads())),
                "")
          << where << ", three threads";
    }
  }
}

TEST_P(CausalSoftmaxTest, ABatchDoesNotKnowTheOthers) {
  const Size size{3, 31, 33};
  Tensor x = Scores(GetParam(), size, Pattern::kNormal, 8);
  std::vector<int64_t> second;
  for (int64_t i = 0; i < size.queries; ++i) second.push_back(size.queries + i);
  Tensor alone = x.Gather(second);
  for (const Variant& variant : AllVariants()) {
    const Tensor all = Causal(variant, x, size.queries, 1.0f, GetParam());
    EXPECT_EQ(
        FirstDifference(all.Gather(second), Causal(variant, alone, size.queries, 1.0f, GetParam())),
        "")
        << variant.label;
  }
}

// e^(x + c) / sum e^(x + c): quarters and whole c, so that no sum is rounded.
TEST_P(CausalSoftmaxTest, AShiftOfARowChangesNoBit) {
  const Size size{1, 40, 257};
  Tensor x(GetParam(), 40, 257), shifted(GetParam(), 40, 257);
  Random random(9);
  for (int64_t row = 0; row < 40; ++row) {
    for (int64_t key = 0; key < 257; ++key) {
      const double value = static_cast<double>(random.Below(32)) / 4;
      x.Set(row, key, value);
      shifted.Set(row, key, value + static_cast<double>(row % 16) - 8);
    }
  }
  for (const Variant& variant : AllVariants()) {
    EXPECT_EQ(FirstDifference(Causal(variant, x, size.queries, 1.0f, GetParam()),
                              Causal(variant, shifted, size.queries, 1.0f, GetParam())),
              "")
        << variant.label;
  }
}

}  // namespace
}  // namespace fuseblock::testing
