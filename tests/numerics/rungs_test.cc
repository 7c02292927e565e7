// Rungs 4 and 7 of the numerical ladder, generated from the list in cases.h: every kernel,
// combination of dtypes and modes, implementation and instruction set, against the FP64 reference
// and against itself.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

struct Generated {
  const KernelUnderTest* kernel;
  Case c;
};

std::vector<Generated> All() {
  std::vector<Generated> all;
  for (const KernelUnderTest& kernel : KernelsUnderTest()) {
    for (Case& c : kernel.cases()) all.push_back({&kernel, std::move(c)});
  }
  return all;
}

// The first case of each dtype of output, for what is too large to run for all.
std::vector<Generated> OnePerDType() {
  std::vector<Generated> some;
  for (const KernelUnderTest& kernel : KernelsUnderTest()) {
    std::vector<DType> seen;
    for (Case& c : kernel.cases()) {
      const DType dtype = c.outputs[0].dtype;
      if (c.inputs.back().dtype != dtype || std::count(seen.begin(), seen.end(), dtype)) continue;
      seen.push_back(dtype);
      some.push_back({&kernel, std::move(c)});
    }
  }
  return some;
}

std::string TestName(const ::testing::TestParamInfo<Generated>& info) {
  return absl::StrCat(info.param.kernel->name, "_", info.param.c.name);
}

class Rungs : public ::testing::TestWithParam<Generated> {
 protected:
  const Case& c() const { return GetParam().c; }
  std::vector<Variant> variants() const { return Variants(GetParam().kernel->implementations()); }
};

// How many 16-bit outputs of a random input may differ from the rounded exact value: an error of d
// spacings flips a rounding with probability 2 d, and there may be two roundings. Three for luck: n
// is small.
double FlipsAllowed(const Case& c, size_t output, int64_t cells, int64_t columns) {
  const DType dtype = c.outputs[output].dtype;
  const double spacings = (c.errors[output].fp32_roundings(columns) + 1) * kUnitRoundoffFp32 /
                          (Traits(dtype).epsilon / 2);
  return 3 + static_cast<double>(cells) * 4 * spacings;
}

void ExpectWithinBound(const Case& c, const Variant& variant, const std::vector<Tensor>& inputs,
                       const std::vector<Tensor>& expected, const std::vector<Tensor>& got,
                       Pattern pattern, const std::string& where) {
  for (size_t i = 0; i < got.size(); ++i) {
    const OutputError& error = c.errors[i];
    const int64_t columns = got[i].columns();
    Bound bound;
    bound.fp32_roundings = error.fp32_roundings(columns);
    bound.bit_exact = error.bit_exact;
    bound.rounds_intermediate = error.rounds_intermediate;
    if (error.factor) {
      bound.factor = [&](int64_t row, int64_t column) { return error.factor(inputs, row, column); };
    }
    if (error.magnitudes) bound.magnitude = error.magnitudes(inputs);
    const Comparison comparison = Compare(expected[i], got[i], bound);
    EXPECT_TRUE(comparison.within) << c.outputs[i].name << " of " << c.name << " on "
                                   << variant.label << ", " << where << ": " << comparison.message;
    if (pattern == Pattern::kNormal && got[i].dtype() != DType::kF32) {
      EXPECT_LE(comparison.differing, FlipsAllowed(c, i, got[i].rows() * columns, columns))
          << c.outputs[i].name << " of " << c.name << " on " << variant.label << ", " << where
          << ": so many cells differ from the correctly rounded value that a rounding is missing";
    }
  }
}

struct Size {
  int64_t rows, columns;
};

// Rung 4. Sizes around every vector width, odd ones, and a model's.
TEST_P(Rungs, MatchTheReference) {
  constexpr Size kSizes[] = {{3, 1},  {5, 2},   {4, 3},   {3, 4},   {7, 5},   {2, 15},
                             {3, 16}, {3, 17},  {2, 31},  {2, 33},  {1, 63},  {3, 64},
                             {2, 65}, {1, 129}, {3, 257}, {2, 576}, {1, 1025}};
  uint64_t seed = 20240501;
  for (const Size size : kSizes) {
    for (const Pattern pattern : kPatterns) {
      ++seed;
      std::vector<Tensor> inputs = MakeInputs(c(), size.rows, size.columns, pattern, seed);
      const std::vector<Tensor> expected = Expected(c(), inputs);
      for (const Variant& variant : variants()) {
        const std::string where =
            absl::StrCat("[", size.rows, ", ", size.columns, "] ", Name(pattern), ", seed ", seed);
        ExpectWithinBound(c(), variant, inputs, expected, RunCase(c(), variant, inputs), pattern,
                          where);
      }
    }
  }
}

TEST_P(Rungs, NoRowsAreNoWork) {
  for (const Variant& variant : variants()) {
    std::vector<Tensor> inputs = MakeInputs(c(), 0, 7168, Pattern::kNormal, 1);
    RunCase(c(), variant, inputs);
  }
}

// Rung 7: run to run, out of place and in place.
TEST_P(Rungs, InPlaceEqualsOutOfPlace) {
  for (const Variant& variant : variants()) {
    std::vector<Tensor> inputs = MakeInputs(c(), 5, 193, Pattern::kNormal, 77);
    const std::vector<Tensor> once = RunCase(c(), variant, inputs);
    const std::vector<Tensor> again = RunCase(c(), variant, inputs);
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_EQ(FirstDifference(once[i], again[i]), "") << variant.label << ", run to run";
    }
    for (const std::vector<int>& in_place : c().in_place) {
      std::vector<Tensor> copies;
      for (const Tensor& input : inputs) copies.push_back(input.Copy());
      const std::vector<Tensor> over = RunCaseInPlace(c(), variant, std::move(copies), in_place);
      for (size_t i = 0; i < once.size(); ++i) {
        EXPECT_EQ(FirstDifference(once[i], over[i]), "")
            << variant.label << ", output " << i << ", in place of input " << in_place[i];
      }
    }
  }
}

// Rung 7: every operand off any vector's alignment, and as rows of a wider tensor.
TEST_P(Rungs, LayoutChangesNoBit) {
  for (const int64_t columns : {1, 7, 64, 131}) {
    for (const Variant& variant : variants()) {
      std::vector<Tensor> inputs = MakeInputs(c(), 5, columns, Pattern::kNormal, 99);
      const std::vector<Tensor> aligned = RunCase(c(), variant, inputs);
      for (const Layout layout : {Layout{1, 0}, Layout{3, 0}, Layout{0, 1}, Layout{1, 13}}) {
        std::vector<Tensor> moved;
        for (size_t i = 0; i < inputs.size(); ++i) {
          const OperandKind kind = c().inputs[i].kind;
          const bool rows = kind == OperandKind::kRows || kind == OperandKind::kPairs ||
                            kind == OperandKind::kTable;
          moved.push_back(inputs[i].Copy(rows ? layout : Layout{layout.offset, 0}));
        }
        const std::vector<Tensor> got = RunCase(c(), variant, moved, layout);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(FirstDifference(aligned[i], got[i]), "")
              << variant.label << ", columns " << columns << ", offset " << layout.offset
              << ", padding " << layout.padding;
        }
      }
    }
  }
}

std::vector<Tensor> GatherInputs(const Case& c, const std::vector<Tensor>& inputs,
                                 const std::vector<int64_t>& indices) {
  std::vector<Tensor> gathered;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool shared =
        c.inputs[i].kind == OperandKind::kTable || c.inputs[i].kind == OperandKind::kVector;
    gathered.push_back(shared ? inputs[i].Copy() : inputs[i].Gather(indices));
  }
  return gathered;
}

// Rung 7: a row alone, and among others in any number and at any position.
TEST_P(Rungs, ARowDoesNotKnowItsBatch) {
  constexpr int64_t kRows = 6;
  for (const int64_t columns : {3, 320}) {
    for (const Variant& variant : variants()) {
      std::vector<Tensor> inputs = MakeInputs(c(), kRows, columns, Pattern::kNotFinite, 5);
      const std::vector<Tensor> together = RunCase(c(), variant, inputs);
      std::vector<std::vector<int64_t>> batches = {{5, 0, 3, 3, 1}, {}};
      for (int64_t i = 0; i < 67; ++i) batches.back().push_back((i * 5) % kRows);
      for (int64_t row = 0; row < kRows; ++row) batches.push_back({row});
      for (const std::vector<int64_t>& batch : batches) {
        std::vector<Tensor> gathered = GatherInputs(c(), inputs, batch);
        const std::vector<Tensor> got = RunCase(c(), variant, gathered);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(FirstDifference(together[i].Gather(batch), got[i]), "")
              << variant.label << ", columns " << columns << ", a batch of " << batch.size();
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Rungs, ::testing::ValuesIn(All()), TestName);

// ---- Sizes that broke others, once per kernel and dtype.

class LargeRungs : public Rungs {};

TEST_P(LargeRungs, ThreadsChangeNoBit) {
  for (const Size size : {Size{257, 2050}, Size{2, 300000}, Size{60000, 9}}) {
    for (const Variant& variant : variants()) {
      if (variant.device != DeviceType::kCpu) continue;
      std::vector<Tensor> inputs = MakeInputs(c(), size.rows, size.columns, Pattern::kNormal, 3);
      const std::vector<Tensor> alone = RunCase(c(), variant, inputs);
      const std::vector<Tensor> shared = RunCase(c(), variant, inputs, {}, ThreeThreads());
      const std::vector<Tensor> padded = RunCase(c(), variant, inputs, {0, 1}, ThreeThreads());
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_EQ(FirstDifference(alone[i], shared[i]), "") << variant.label;
        EXPECT_EQ(FirstDifference(alone[i], padded[i]), "") << variant.label;
      }
    }
  }
}

TEST_P(LargeRungs, LongRows) {
  uint64_t seed = 4096;
  for (const int64_t columns : {3584, 8193, 11009, 16384, 262144}) {
    std::vector<Tensor> inputs = MakeInputs(c(), 2, columns, Pattern::kNormal, ++seed);
    const std::vector<Tensor> expected = Expected(c(), inputs);
    for (const Variant& variant : variants()) {
      const std::vector<Tensor> got = RunCase(c(), variant, inputs);
      ExpectWithinBound(c(), variant, inputs, expected, got, Pattern::kNormal,
                        absl::StrCat("2 rows of ", columns, ", seed ", seed));
      std::vector<Tensor> moved;
      for (const Tensor& input : inputs) moved.push_back(input.Copy({1, 0}));
      const std::vector<Tensor> offset = RunCase(c(), variant, moved, {1, 0});
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(FirstDifference(got[i], offset[i]), "")
            << variant.label << ", columns " << columns << ", every operand off by one element";
      }
    }
  }
}

// More rows than a grid's y axis has: the first, the last and every 4,099th are checked.
TEST_P(LargeRungs, ManyRows) {
  for (const int64_t rows : {65536, 1048577}) {
    std::vector<Tensor> inputs = MakeInputs(c(), rows, 8, Pattern::kNormal, 8);
    std::vector<int64_t> sample = {0, 65534, 65535, rows - 1};
    for (int64_t row = 4099; row < rows; row += 4099) sample.push_back(row);
    std::vector<Tensor> few = GatherInputs(c(), inputs, sample);
    const std::vector<Tensor> expected = Expected(c(), few);
    for (const Variant& variant : variants()) {
      if (variant.implementation == "reference") continue;
      const std::vector<Tensor> got = RunCase(c(), variant, inputs);
      std::vector<Tensor> sampled;
      for (const Tensor& output : got) sampled.push_back(output.Gather(sample));
      ExpectWithinBound(c(), variant, few, expected, sampled, Pattern::kExponents,
                        absl::StrCat(rows, " rows"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LargeRungs, ::testing::ValuesIn(OnePerDType()), TestName);

}  // namespace
}  // namespace fuseblock::testing
