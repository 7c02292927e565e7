// Rung 3 of the numerical ladder: the FP64 references against closed forms, in FP32, where they may
// differ by the one rounding only.
#include <cmath>
#include <functional>

#include "gtest/gtest.h"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

const Variant kReference{"reference", DeviceType::kCpu, 0, "reference"};

std::vector<Tensor> Reference(const std::string& kernel_name, const std::string& case_name,
                              std::vector<Tensor>& inputs) {
  for (const KernelUnderTest& kernel : KernelsUnderTest()) {
    if (kernel.name != kernel_name) continue;
    for (const Case& c : kernel.cases()) {
      if (c.name == case_name) return RunCase(c, kReference, inputs);
    }
  }
  ADD_FAILURE() << "no case " << kernel_name << " " << case_name;
  return {};
}

Tensor Make(int64_t rows, int64_t columns, const std::function<double(int64_t, int64_t)>& value) {
  Tensor tensor(DType::kF32, rows, columns);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      tensor.Set(row, column, value(row, column));
    }
  }
  return tensor;
}

void ExpectRounded(const Tensor& got, const std::function<double(int64_t, int64_t)>& exact) {
  const Tensor want = Make(got.rows(), got.columns(), exact);
  EXPECT_EQ(FirstDifference(want, got), "");
}

template <typename... T>
std::vector<Tensor> List(T&&... tensors) {
  std::vector<Tensor> list;
  (list.push_back(std::move(tensors)), ...);
  return list;
}

// silu(ln a) = a ln a / (a + 1); silu(x) - silu(-x) = x.
TEST(Reference, SiluAtLogarithms) {
  auto inputs =
      List(Make(1, 40, [](int64_t, int64_t i) { return (static_cast<double>(i) - 20) / 2; }));
  const auto got = Reference("silu", "fp32_to_fp32", inputs);
  ExpectRounded(got[0], [](int64_t, int64_t i) {
    const double x = (static_cast<double>(i) - 20) / 2;
    return x * 0.5 * (1 + std::tanh(x / 2));  // sigmoid by the hyperbolic tangent
  });
}

// silu(x) tends to x and to x e^x.
TEST(Reference, SiluFarFromZero) {
  auto inputs = List(Make(1, 4, [](int64_t, int64_t i) {
    constexpr double kValues[] = {-100, -91.5, 40, 1e30};
    return kValues[i];
  }));
  const auto got = Reference("silu", "fp32_to_fp32", inputs);
  ExpectRounded(got[0], [](int64_t, int64_t i) {
    constexpr double kMinusNinetyOneAndHalf = -91.5;
    const double values[] = {-100 * std::exp(-100.0),
                             kMinusNinetyOneAndHalf * std::exp(kMinusNinetyOneAndHalf), 40, 1e30};
    return values[i];
  });
}

// 1 + 2 + .. + n, with signs that leave half of it; the largest of a parabola.
TEST(Reference, RowReductions) {
  auto series = List(Make(2, 1001, [](int64_t row, int64_t i) {
    return static_cast<double>(row == 0 || i % 2 == 0 ? i : -i);
  }));
  auto parabola = List(Make(
      1, 1000, [](int64_t, int64_t i) { return 5.25 - static_cast<double>((i - 77) * (i - 77)); }));
  for (const char* kernel : {"warp_reduce", "block_reduce"}) {
    ExpectRounded(Reference(kernel, "sum_fp32_to_fp32", series)[0],
                  [](int64_t row, int64_t) { return row == 0 ? 500500.0 : 500.0; });
    ExpectRounded(Reference(kernel, "max_fp32_to_fp32", parabola)[0],
                  [](int64_t, int64_t) { return 5.25; });
  }
}

// By erf and tanh themselves, which lose nothing for x >= 0; gelu(x) - gelu(-x) = x.
TEST(Reference, GeluByErfAndTanh) {
  const auto x = [](int64_t, int64_t i) { return static_cast<double>(i) / 8; };
  auto inputs = List(Make(1, 100, x));
  ExpectRounded(Reference("gelu_erf", "fp32_to_fp32", inputs)[0], [&](int64_t row, int64_t i) {
    return 0.5 * x(row, i) * (1 + std::erf(x(row, i) * std::sqrt(0.5)));
  });
  ExpectRounded(Reference("gelu_tanh", "fp32_to_fp32", inputs)[0], [&](int64_t row, int64_t i) {
    const double v = x(row, i);
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  });
}

// The tails: Phi(-t) = phi(t) / t (1 - 1/t^2 + 3/t^4 - ...), whose terms fall until t^2, and x
// e^2u.
TEST(Reference, GeluFarFromZero) {
  const auto x = [](int64_t, int64_t i) { return -10 - static_cast<double>(i) / 8; };
  auto far = List(Make(1, 24, x));
  ExpectRounded(Reference("gelu_erf", "fp32_to_fp32", far)[0], [&](int64_t row, int64_t i) {
    const double square = x(row, i) * x(row, i);
    double sum = 1, term = 1;
    for (int k = 1; k < 40; k += 2) sum += term *= -k / square;
    return -std::exp(-square / 2) / std::sqrt(2 * M_PI) * sum;
  });
  auto less_far = List(Make(1, 12, [&](int64_t row, int64_t i) { return x(row, i) + 2; }));
  ExpectRounded(Reference("gelu_tanh", "fp32_to_fp32", less_far)[0], [&](int64_t row, int64_t i) {
    const double v = x(row, i) + 2;
    return v * std::exp(2 * std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v));
  });
}

// The mean of the squares of 1..n is (n + 1)(2n + 1) / 6.
TEST(Reference, RmsNormOfAnArithmeticSeries) {
  constexpr int64_t kColumns = 1000;
  auto inputs =
      List(Make(1, kColumns, [](int64_t, int64_t i) { return static_cast<double>(i + 1); }),
           Make(1, kColumns, [](int64_t, int64_t i) { return i % 2 == 0 ? 0.5 : -2.0; }));
  const double root = std::sqrt(1001.0 * 2001.0 / 6 + static_cast<double>(1e-6f));
  const auto plain = Reference("rms_norm", "fp32_to_fp32_wfp32_once", inputs);
  ExpectRounded(plain[0], [&](int64_t, int64_t i) {
    return static_cast<double>(i + 1) / root * (i % 2 == 0 ? 0.5 : -2.0);
  });
  const auto offset = Reference("rms_norm", "fp32_to_fp32_wfp32_offset", inputs);
  ExpectRounded(offset[0], [&](int64_t, int64_t i) {
    return static_cast<double>(i + 1) / root * (i % 2 == 0 ? 1.5 : -1.0);
  });
}

// A constant row's norm is its sign, less what eps takes: c / sqrt(c^2 + eps).
TEST(Reference, RmsNormOfConstants) {
  auto inputs = List(Make(
      5, 7, [](int64_t row, int64_t) { return std::ldexp(-1.0, static_cast<int>(row) * 5 - 20); }));
  const auto got = Reference("rms_norm", "fp32_to_fp32_once", inputs);
  ExpectRounded(got[0], [](int64_t row, int64_t) {
    const double c = std::ldexp(-1.0, static_cast<int>(row) * 5 - 20);
    return c / std::sqrt(c * c + static_cast<double>(1e-6f));
  });
}

// The mean of 1..n is (n + 1) / 2, their variance (n^2 - 1) / 12; a shift changes nothing.
TEST(Reference, LayerNormOfAnArithmeticSeries) {
  constexpr int64_t kColumns = 1001;
  for (const double shift : {0.0, 4096.0, -1048576.0}) {
    auto inputs = List(
        Make(1, kColumns, [&](int64_t, int64_t i) { return static_cast<double>(i + 1) + shift; }));
    const double root = std::sqrt((1001.0 * 1001.0 - 1) / 12 + static_cast<double>(1e-5f));
    const auto got = Reference("layer_norm", "fp32_to_fp32", inputs);
    ExpectRounded(got[0], [&](int64_t, int64_t i) { return static_cast<double>(i - 500) / root; });
  }
}

TEST(Reference, LayerNormOfConstantsIsTheBias) {
  auto inputs = List(
      Make(4, 37,
           [](int64_t row, int64_t) { return std::ldexp(-1.1, static_cast<int>(row) * 20 - 30); }),
      Make(1, 37, [](int64_t, int64_t i) { return static_cast<double>(i); }),
      Make(1, 37, [](int64_t, int64_t i) { return std::sin(i); }));
  const auto got = Reference("layer_norm", "fp32_to_fp32_wfp32_b", inputs);
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t i = 0; i < 37; ++i) EXPECT_EQ(got[0].Bits(row, i), inputs[2].Bits(0, i));
  }
}

// The powers q^i of q = e^(-1/4) sum to (1 - q^n) / (1 - q).
TEST(Reference, SoftmaxOfAGeometricSeries) {
  constexpr int64_t kColumns = 64;
  auto inputs =
      List(Make(1, kColumns, [](int64_t, int64_t i) { return -0.25 * static_cast<double>(i); }));
  const double q = std::exp(-0.25);
  const double sum = (1 - std::pow(q, kColumns)) / (1 - q);
  const auto exact = [&](int64_t, int64_t i) {
    return std::exp(-0.25 * static_cast<double>(i)) / sum;
  };
  ExpectRounded(Reference("softmax", "fp32_to_fp32", inputs)[0], exact);
  ExpectRounded(Reference("softmax_masked", "fp32_to_fp32", inputs)[0], exact);
  // The same sums from an ascending x and a mask that takes twice of it away.
  auto parts =
      List(Make(1, kColumns, [](int64_t, int64_t i) { return 0.25 * static_cast<double>(i); }),
           Make(1, kColumns, [](int64_t, int64_t i) { return -0.5 * static_cast<double>(i); }));
  ExpectRounded(Reference("softmax_masked", "fp32_to_fp32_mfp32", parts)[0], exact);
}

// x = a cos, r = a (1 - cos) + b: h is a + b, whatever the parts.
TEST(Reference, AddRmsNormSeesOnlyTheSum) {
  auto inputs = List(
      Make(2, 64,
           [](int64_t row, int64_t i) { return static_cast<double>((i * 7 + row) % 16) / 4; }),
      Make(2, 64,
           [](int64_t row, int64_t i) { return 4 - static_cast<double>((i * 7 + row) % 16) / 4; }));
  const auto got = Reference("add_rms_norm", "fp32_hfp32_once_fused", inputs);
  const double root = std::sqrt(16 + static_cast<double>(1e-6f));
  ExpectRounded(got[0], [&](int64_t, int64_t) { return 4 / root; });
  ExpectRounded(got[1], [](int64_t, int64_t) { return 4.0; });
}

}  // namespace
}  // namespace fuseblock::testing
