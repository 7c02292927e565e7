// What holds between the results of the kernels that reduce a row, on every implementation:
// permuted rows, scaled rows of RMSNorm, shifted rows of softmax and LayerNorm, masks. Where both
// sides round alike the bits are equal.
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Sizes for each of the GPU's code paths and for the CPU's tails.
constexpr int64_t kColumns[] = {7, 577, 1536, 2056, 4104, 8200, 16392};

// Runs body(case, variant) for that case on each implementation.
template <typename F>
void OnEach(const std::string& kernel, const std::string& name, F&& body) {
  for (const Case& c : Kernel(kernel).cases()) {
    if (c.name != name) continue;
    for (const Variant& variant : Variants(Kernel(kernel).implementations())) {
      SCOPED_TRACE(absl::StrCat(kernel, " ", name, " on ", variant.label));
      body(c, variant);
    }
    return;
  }
  ADD_FAILURE() << "no case " << kernel << " " << name;
}

template <typename... T>
std::vector<Tensor> List(const T&... tensors) {
  std::vector<Tensor> list;
  (list.push_back(tensors.Copy()), ...);
  return list;
}

Tensor Filled(DType dtype, int64_t rows, int64_t columns, uint64_t seed) {
  Tensor tensor(dtype, rows, columns);
  Fill(tensor, Pattern::kNormal, 1e4, seed);
  return tensor;
}

// A tensor of the same shape and dtype, f(value, row, column) in each cell.
template <typename F>
Tensor Mapped(const Tensor& tensor, F&& f) {
  Tensor out = tensor.Copy();
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t i = 0; i < out.columns(); ++i) out.Set(row, i, f(out.At(row, i), row, i));
  }
  return out;
}

class RowReductions : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  std::string same() const { return label() + "_to_" + label(); }
  std::string label() const { return std::string(Traits(dtype()).label); }
};
INSTANTIATE_TEST_SUITE_P(DTypes, RowReductions, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& dtype) { return std::string(Traits(dtype.param).label); });

// Rows in another order give the results in that order. How many LayerNorm takes together depends
// on their length.
TEST_P(RowReductions, PermutedRows) {
  const std::vector<int64_t> order = {4, 8, 0, 7, 2, 1, 6, 3, 5};
  for (const int64_t columns : {577, 20011, 40009}) {
    const Tensor x = Filled(dtype(), 9, columns, 3);
    for (const char* kernel : {"rms_norm", "layer_norm", "softmax", "softmax_masked"}) {
      const std::string name = same() + (kernel == std::string("rms_norm") ? "_once" : "");
      OnEach(kernel, name, [&](const Case& c, const Variant& variant) {
        auto inputs = List(x);
        auto permuted = List(x.Gather(order));
        const auto once = RunCase(c, variant, inputs);
        EXPECT_EQ(FirstDifference(once[0].Gather(order), RunCase(c, variant, permuted)[0]), "")
            << columns;
      });
    }
  }
}

// 2^k x has the norm of x, but for what eps takes: in FP32 nothing beside squares of 2^16 and more
// (the reference sees it).
TEST_P(RowReductions, ScaledRowsOfRmsNorm) {
  for (const int64_t columns : kColumns) {
    const Tensor x = Mapped(Filled(dtype(), 2, columns, 5),
                            [](double value, int64_t, int64_t) { return value * 512; });
    const Tensor scaled = Mapped(x, [](double value, int64_t, int64_t) { return value * -16; });
    OnEach("rms_norm", same() + "_once", [&](const Case& c, const Variant& variant) {
      if (variant.implementation == "reference") return;
      auto inputs = List(x), times = List(scaled);
      const auto once = RunCase(c, variant, inputs);
      const Tensor negated = Mapped(once[0], [](double value, int64_t, int64_t) { return -value; });
      EXPECT_EQ(FirstDifference(negated, RunCase(c, variant, times)[0]), "") << columns;
    });
  }
}

// Whole numbers and a power of two as the shift: every difference from the maximum is exact, so the
// bits are equal.
TEST_P(RowReductions, ShiftedRowsOfSoftmax) {
  for (const int64_t columns : kColumns) {
    Tensor x(dtype(), 2, columns);
    Random random(7);
    x = Mapped(x, [&](double, int64_t, int64_t) { return static_cast<double>(random.Below(33)); });
    const Tensor shifted = Mapped(x, [](double value, int64_t, int64_t) { return value - 64; });
    for (const char* kernel : {"softmax", "softmax_masked"}) {
      OnEach(kernel, same(), [&](const Case& c, const Variant& variant) {
        auto inputs = List(x), moved = List(shifted);
        const auto once = RunCase(c, variant, inputs);
        EXPECT_EQ(FirstDifference(once[0], RunCase(c, variant, moved)[0]), "") << columns;
        double sum = 0;
        for (int64_t i = 0; i < columns; ++i) sum += once[0].At(0, i);
        // Each cell's half spacing, relative or the subnormals', and the sum's own roundings.
        const double count = static_cast<double>(columns);
        EXPECT_NEAR(sum, 1,
                    Traits(dtype()).epsilon / 2 + count * Spacing(dtype(), 0) / 2 +
                        (48 + count / 512) * kUnitRoundoffFp32)
            << columns;
      });
    }
  }
}

// Whole numbers with a mean of 0 in powers of two of columns have exact sums and means, so a shift
// leaves the differences from the mean as they are.
TEST_P(RowReductions, ShiftedRowsOfLayerNorm) {
  for (const int64_t columns : {8, 512, 2048, 4096, 8192, 16384, 32768}) {
    Tensor x(dtype(), 2, columns);
    // 0, -1, 1, -2, 2, -1, 1, .. : pairs that cancel, and one 0.
    x = Mapped(x, [&](double, int64_t, int64_t i) {
      return i == 0 || i == columns - 1 ? 0.0 : ((i - 1) / 2 % 3 + 1.0) * (i % 2 == 0 ? 1 : -1);
    });
    const Tensor shifted = Mapped(x, [](double value, int64_t, int64_t) { return value + 64; });
    OnEach("layer_norm", same(), [&](const Case& c, const Variant& variant) {
      auto inputs = List(x), moved = List(shifted);
      const auto once = RunCase(c, variant, inputs);
      EXPECT_EQ(FirstDifference(once[0], RunCase(c, variant, moved)[0]), "") << columns;
    });
  }
}

// Lanes that hold no column must add nothing to the variance: a row of +-1 about a mean of 4096 has
// the variance 1 at any number of columns.
TEST_P(RowReductions, IdleLanesAddNothingToTheVariance) {
  const double mean = dtype() == DType::kBF16 ? 128 : 1024;
  for (const int64_t columns : {2, 30, 1000, 1536, 2050, 5000, 9000, 20000}) {
    Tensor x(dtype(), 1, columns);
    x = Mapped(x, [&](double, int64_t, int64_t i) { return i % 2 == 0 ? mean + 1 : mean - 1; });
    OnEach("layer_norm", same(), [&](const Case& c, const Variant& variant) {
      auto inputs = List(x);
      const auto got = RunCase(c, variant, inputs);
      Tensor want = x.Copy();
      const double n = 1 / std::sqrt(1 + static_cast<double>(1e-5f));
      want = Mapped(want, [&](double, int64_t, int64_t i) { return i % 2 == 0 ? n : -n; });
      Bound bound;
      // A mean by the reciprocal of the columns is not whole, and then the squares' sum rounds.
      bound.fp32_roundings = (40 + static_cast<double>(columns) / 512) / 2 + 5;
      const Comparison comparison = Compare(want, got[0], bound);
      EXPECT_TRUE(comparison.within) << columns << ": " << comparison.message;
    });
  }
}

// A row that begins far from its mean, by ten of its deviations, is no less exact for it.
TEST_P(RowReductions, LayerNormOfARowThatBeginsElsewhere) {
  for (const int64_t columns : {16392, 8200}) {
    Tensor x = Filled(dtype(), 2, columns, 17);
    x = Mapped(x, [&](double value, int64_t, int64_t i) {
      return i < columns / 128 ? 1000 + value : std::fmod(value, 4);
    });
    OnEach("layer_norm", same(), [&](const Case& c, const Variant& variant) {
      auto inputs = List(x);
      const auto expected = Expected(c, inputs);
      Bound bound;
      bound.fp32_roundings = c.errors[0].fp32_roundings(columns);
      bound.magnitude = c.errors[0].magnitudes(inputs);
      const Comparison comparison = Compare(expected[0], RunCase(c, variant, inputs)[0], bound);
      EXPECT_TRUE(comparison.within) << columns << ": " << comparison.message;
    });
  }
}

// A constant row, whose sum rounds, gives exactly the bias.
TEST_P(RowReductions, ConstantRowsOfLayerNormAreTheBias) {
  for (const int64_t columns : kColumns) {
    for (const double value : {0.1, 60000.0, -1.0 / 3, 1e-7}) {
      const Tensor x =
          Mapped(Tensor(dtype(), 2, columns), [&](double, int64_t, int64_t) { return value; });
      const Tensor w = Filled(dtype(), 1, columns, 11), b = Filled(dtype(), 1, columns, 12);
      for (const char* eps : {"", "_small_eps"}) {
        OnEach("layer_norm", same() + "_w" + label() + "_b" + eps,
               [&](const Case& c, const Variant& variant) {
                 auto inputs = List(x, w, b);
                 const auto got = RunCase(c, variant, inputs);
                 EXPECT_EQ(FirstDifference(b.Gather({0, 0}), got[0]), "")
                     << columns << " " << value << eps;
               });
      }
    }
  }
}

// No mask, and a mask of zeros, leave softmax.
TEST_P(RowReductions, AMaskOfNothingIsSoftmax) {
  for (const int64_t columns : kColumns) {
    const Tensor x = Filled(dtype(), 3, columns, 21);
    const Tensor zeros = Mapped(x, [](double, int64_t, int64_t) { return 0.0; });
    std::vector<Tensor> plain;
    OnEach("softmax", same(), [&](const Case& c, const Variant& variant) {
      auto inputs = List(x);
      plain.push_back(std::move(RunCase(c, variant, inputs)[0]));
    });
    size_t at = 0;
    OnEach("softmax_masked", same(), [&](const Case& c, const Variant& variant) {
      auto inputs = List(x);
      EXPECT_EQ(FirstDifference(plain[at++], RunCase(c, variant, inputs)[0]), "") << columns;
    });
    at = 0;
    OnEach("softmax_masked", same() + "_m" + label(), [&](const Case& c, const Variant& variant) {
      auto inputs = List(x, zeros);
      EXPECT_EQ(FirstDifference(plain[at++], RunCase(c, variant, inputs)[0]), "") << columns;
    });
  }
}

// What a mask takes out is exactly 0, and its x cannot be seen: any finite value gives the same
// bits. A row with nothing left is 0.
TEST_P(RowReductions, MaskedColumnsAreNotSeen) {
  for (const int64_t columns : kColumns) {
    const Tensor x = Filled(dtype(), 3, columns, 31);
    const auto out = [](int64_t row, int64_t i) { return row == 2 || (i + row) % 3 == 0; };
    const Tensor mask =
        Mapped(x, [&](double, int64_t row, int64_t i) { return out(row, i) ? -kInfinity : 0.0; });
    const Tensor other = Mapped(x, [&](double value, int64_t row, int64_t i) {
      return out(row, i) ? 1e4 - static_cast<double>(i) : value;
    });
    OnEach("softmax_masked", same() + "_m" + label(), [&](const Case& c, const Variant& variant) {
      auto inputs = List(x, mask), others = List(other, mask);
      const auto got = RunCase(c, variant, inputs);
      EXPECT_EQ(FirstDifference(got[0], RunCase(c, variant, others)[0]), "") << columns;
      for (int64_t row = 0; row < 3; ++row) {
        for (int64_t i = 0; i < columns; ++i) {
          if (!out(row, i)) continue;
          ASSERT_EQ(got[0].Bits(row, i), 0) << row << ", " << i << " of " << columns;
        }
      }
    });
  }
}

}  // namespace
}  // namespace fuseblock::testing
