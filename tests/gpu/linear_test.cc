// The product on CUDA: against FP64 within its bound, the same bits for a row in any batch,
// position, layout and stream, and what algorithms the plans pinned.
#include "kernels/linear/linear.h"

#include <cmath>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "kernels/linear_bias_gelu/linear_bias_gelu.h"
#include "tests/gpu/device_rows.h"

namespace fuseblock::testing {
namespace {

class GpuLinear : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  std::vector<DType> OutputDTypes() const {
    if (dtype() == DType::kF32) return {DType::kF32};
    return {dtype(), DType::kF32};
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, GpuLinear, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

LinearWeight Prepared(const Tensor& weight, const Tensor* bias = nullptr) {
  std::optional<ConstTensorView> bias_view;
  if (bias != nullptr) bias_view = HostVector(*bias);
  absl::StatusOr<LinearWeight> prepared = LinearWeight::Prepare(kGpu, HostView(weight), bias_view);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return prepared.ok() ? *std::move(prepared) : LinearWeight();
}

void Multiply(const GpuStream& stream, const TensorView& x, const LinearWeight& weight,
              const TensorView& y) {
  const absl::Status status = Linear(stream.context(), x, weight, y);
  ASSERT_TRUE(status.ok()) << status;
  stream.Wait();
}

// Half the distance between neighbours in the dtype at a value of that magnitude.
double HalfSpacing(DType dtype, double magnitude) {
  const double smallest_normal = dtype == DType::kF16 ? 0x1p-14 : 0x1p-126;
  return std::exp2(std::floor(std::log2(std::max(magnitude, smallest_normal)))) *
         Traits(dtype).epsilon / 2;
}

// FP32 sums are made of chains of at most that many products.
constexpr int64_t kFloatSegment = 128;

// In FP32: the roundings of a segment's chain, one for each segment and one for the bias. On tensor
// cores a step adds 16 products to the sum and cuts 17 addends at 2^-25 of the largest: K * 17 / 32
// units of 2^-24 at most.
double AccumulationUnits(DType dtype, int64_t k) {
  if (dtype != DType::kF32) return static_cast<double>(k) + 2;
  return static_cast<double>(std::min(k, kFloatSegment) + k / kFloatSegment) + 2;
}

// Checks every `step`-th output against FP64, and the error over all of them as a norm: 2^-17 is
// far above what FP32 accumulation leaves and far below TF32's 2^-11.
void ExpectProduct(const Tensor& x, const Tensor& w, const Tensor* bias, const Tensor& y,
                   int64_t step) {
  double error_squares = 0;
  double value_squares = 0;
  for (int64_t m = 0; m < y.rows(); ++m) {
    for (int64_t n = m % step; n < y.columns(); n += step) {
      double value = bias == nullptr ? 0 : bias->At(0, n);
      double norm = std::fabs(value);
      for (int64_t k = 0; k < x.columns(); ++k) {
        const double product = x.At(m, k) * w.At(n, k);
        value += product;
        norm += std::fabs(product);
      }
      const double accumulated = AccumulationUnits(x.dtype(), x.columns()) * 0x1p-24 * norm;
      const double bound = accumulated + HalfSpacing(y.dtype(), std::fabs(value) + accumulated);
      const double error = std::fabs(y.At(m, n) - value);
      ASSERT_LE(error, bound) << "y[" << m << ", " << n << "] of N " << y.columns() << ", K "
                              << x.columns() << ": " << y.At(m, n) << ", exact " << value;
      const double rounding = HalfSpacing(y.dtype(), std::fabs(value));
      error_squares += std::pow(std::max(0.0, error - rounding), 2);
      value_squares += norm * norm / static_cast<double>(std::max<int64_t>(1, x.columns()));
    }
  }
  EXPECT_LE(std::sqrt(error_squares), 0x1p-14 * std::sqrt(value_squares))
      << "N " << y.columns() << ", K " << x.columns();
}

TEST_P(GpuLinear, EveryShapeIsWithinItsBound) {
  uint64_t seed = 1;
  GpuStream stream;
  for (const int64_t n : {1, 2, 7, 8, 63, 64, 72, 130}) {
    for (const int64_t k : {1, 3, 8, 16, 63, 64, 72, 576}) {
      const Tensor w = Normals(dtype(), n, k, 1, ++seed);
      const Tensor b = Normals(DType::kF32, 1, n, 1, ++seed);
      const LinearWeight plain = Prepared(w);
      const LinearWeight biased = Prepared(w, &b);
      for (const int64_t m : {1, 2, 5, 33, 130}) {
        const Tensor x = Normals(dtype(), m, k, 1, ++seed);
        const DeviceRows device_x(x.Copy());
        for (const DType y_dtype : OutputDTypes()) {
          for (const bool with_bias : {false, true}) {
            DeviceRows y(y_dtype, m, n);
            Multiply(stream, device_x.view(), with_bias ? biased : plain, y.view());
            ExpectProduct(x, w, with_bias ? &b : nullptr, y.Read(), m * n * k > 100000 ? 7 : 1);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// Rows of no whole number of 16 bytes: the plain tiles, by a few outputs more and less than a tile.
TEST_P(GpuLinear, TilesOfOddSizes) {
  uint64_t seed = 100;
  GpuStream stream;
  for (const int64_t n : {5, 67}) {
    for (const int64_t k : {3, 149}) {
      const Tensor w = Normals(dtype(), n, k, 1, ++seed);
      const LinearWeight weight = Prepared(w);
      EXPECT_EQ(weight.description(), "FP32 FMA tiles 64 x 64");
      const Tensor x = Normals(dtype(), 70, k, 1, ++seed);
      const DeviceRows device_x(x.Copy());
      DeviceRows y(dtype(), 70, n);
      Multiply(stream, device_x.view(), weight, y.view());
      ExpectProduct(x, w, nullptr, y.Read(), 1);
    }
  }
}

TEST_P(GpuLinear, LongSums) {
  const Tensor w = Normals(dtype(), 2560, 8192, 0.02, 7);
  const Tensor x = Normals(dtype(), 16, 8192, 1, 8);
  const LinearWeight weight = Prepared(w);
  const DeviceRows device_x(x.Copy());
  GpuStream stream;
  for (const DType y_dtype : OutputDTypes()) {
    DeviceRows y(y_dtype, 16, 2560);
    Multiply(stream, device_x.view(), weight, y.view());
    ExpectProduct(x, w, nullptr, y.Read(), 97);
  }
}

// One chain would lose each 1 beside 2^24; a segment of ones is a number that counts.
TEST_P(GpuLinear, FloatSumsAreOfSegments) {
  if (dtype() != DType::kF32) return;
  GpuStream stream;
  for (const int64_t segments : {2, 3, 16}) {
    const int64_t k = segments * kFloatSegment;
    Tensor x(DType::kF32, 1, k), w(DType::kF32, 64, k);
    for (int64_t i = 0; i < k; ++i) x.Set(0, i, i == 0 ? 0x1p24 : i < kFloatSegment ? 0.0 : 1.0);
    for (int64_t n = 0; n < 64; ++n) {
      for (int64_t i = 0; i < k; ++i) w.Set(n, i, 1.0);
    }
    DeviceRows y(DType::kF32, 1, 64);
    Multiply(stream, DeviceRows(x.Copy()).view(), Prepared(w), y.view());
    EXPECT_EQ(y.Read().At(0, 63), 0x1p24 + static_cast<double>(k - kFloatSegment));
  }
}

TEST_P(GpuLinear, NoInnerAxisGivesTheBiasOrZeros) {
  const Tensor w(dtype(), 70, 0);
  const Tensor b = Normals(DType::kF32, 1, 70, 1, 3);
  const LinearWeight plain = Prepared(w);
  const LinearWeight biased = Prepared(w, &b);
  const DeviceRows x(dtype(), 5, 0);
  GpuStream stream;
  DeviceRows y(DType::kF32, 5, 70);
  Multiply(stream, x.view(), plain, y.view());
  for (int64_t n = 0; n < 70; ++n) ASSERT_EQ(y.Read().At(4, n), 0);
  Multiply(stream, x.view(), biased, y.view());
  for (int64_t n = 0; n < 70; ++n) ASSERT_EQ(y.Read().At(4, n), b.At(0, n));
  const DeviceRows none(dtype(), 0, 0);
  DeviceRows no_rows(DType::kF32, 0, 70);
  Multiply(stream, none.view(), biased, no_rows.view());
}

// Whether rows [first, first + count) of `all` are the first `count` rows of `part`.
bool SameRows(const Tensor& all, int64_t first, const Tensor& part, int64_t count) {
  const size_t row_bytes = static_cast<size_t>(all.columns() * SizeOf(all.dtype()));
  return std::memcmp(all.memory() + first * static_cast<int64_t>(row_bytes), part.memory(),
                     static_cast<size_t>(count) * row_bytes) == 0;
}

// Rows of 1,024 in batches of the given sizes, at three positions (one where the sizes are many),
// against all of them at once.
void ExpectRowsKeepTheirBits(const LinearWeight& weight, DType y_dtype,
                             const std::vector<int64_t>& sizes) {
  constexpr int64_t kRows = 1024;
  GpuStream stream;
  const DeviceRows x(Normals(weight.dtype(), kRows, weight.k(), 1, 5));
  DeviceRows all(y_dtype, kRows, weight.n());
  Multiply(stream, x.view(), weight, all.view());
  const Tensor& expected = all.Read();
  for (const int64_t count : sizes) {
    std::vector<int64_t> positions = {0, (kRows - count) / 3, kRows - count};
    if (sizes.size() > 100) positions = {count * 7919 % (kRows - count + 1)};
    for (const int64_t first : positions) {
      DeviceRows part(y_dtype, count, weight.n());
      Multiply(stream, x.view(first, count), weight, part.view());
      ASSERT_TRUE(SameRows(expected, first, part.Read(), count))
          << count << " rows from " << first << " of [" << weight.n() << ", " << weight.k()
          << "], output " << std::string(Name(y_dtype)) << ", " << weight.description();
    }
  }
}

TEST_P(GpuLinear, ARowDoesNotKnowItsBatchOf1To1024) {
  std::vector<int64_t> every;
  for (int64_t count = 1; count <= 1024; ++count) every.push_back(count);
  for (const auto& [n, k] : {std::pair{1536, 576}, std::pair{70, 149}}) {
    const LinearWeight weight = Prepared(Normals(dtype(), n, k, 0.05, 1));
    for (const DType y_dtype : OutputDTypes()) {
      ASSERT_NO_FATAL_FAILURE(ExpectRowsKeepTheirBits(weight, y_dtype, every));
    }
  }
}

TEST_P(GpuLinear, ARowOfALargeProductDoesNotKnowItsBatch) {
  const std::vector<int64_t> sizes = {1,   2,   3,   5,   7,   8,   9,   15,   16,  17,  31,
                                      32,  33,  63,  64,  65,  100, 127, 128,  129, 192, 255,
                                      256, 257, 384, 511, 512, 513, 768, 1000, 1023};
  for (const auto& [n, k] : {std::pair{14336, 4096}, std::pair{4096, 14336}}) {
    const LinearWeight weight = Prepared(Normals(dtype(), n, k, 0.02, 1));
    RecordProperty(absl::StrCat("plan_", n, "_", k), weight.description());
    std::printf("[ plan     ] %s [%d, %d]: %s\n", std::string(Name(dtype())).c_str(), n, k,
                weight.description().c_str());
    for (const DType y_dtype : OutputDTypes()) {
      ASSERT_NO_FATAL_FAILURE(ExpectRowsKeepTheirBits(weight, y_dtype, sizes));
    }
  }
}

// More rows than one call of the library takes.
TEST_P(GpuLinear, MoreRowsThanOneCallTakes) {
  constexpr int64_t kRows = 65536 + 77;
  const LinearWeight weight = Prepared(Normals(dtype(), 16, 8, 1, 1));
  GpuStream stream;
  const DeviceRows x(Normals(dtype(), kRows, 8, 1, 2));
  DeviceRows y(dtype(), kRows, 16);
  Multiply(stream, x.view(), weight, y.view());
  const Tensor& all = y.Read();
  for (const int64_t row : {int64_t{0}, int64_t{65535}, int64_t{65536}, kRows - 1}) {
    DeviceRows alone(dtype(), 1, 16);
    Multiply(stream, x.view(row, 1), weight, alone.view());
    ASSERT_TRUE(SameRows(all, row, alone.Read(), 1)) << "row " << row;
  }
}

TEST_P(GpuLinear, AnyAddressAndStride) {
  for (const auto& [n, k] : {std::pair{128, 64}, std::pair{70, 149}}) {
    const Tensor w = Normals(dtype(), n, k, 1, 1);
    const Tensor b = Normals(DType::kF32, 1, n, 1, 2);
    const Tensor x = Normals(dtype(), 1030, k, 1, 3);
    GpuStream stream;
    for (const bool with_bias : {false, true}) {
      const LinearWeight weight = Prepared(w, with_bias ? &b : nullptr);
      for (const DType y_dtype : OutputDTypes()) {
        DeviceRows dense(y_dtype, 1030, n);
        const DeviceRows dense_x(x.Copy());
        Multiply(stream, dense_x.view(), weight, dense.view());
        const Tensor expected = dense.Read().Copy();
        for (const Layout layout : {Layout{1, 0}, Layout{0, 8}, Layout{0, 3}, Layout{5, 1}}) {
          const DeviceRows moved(x.Copy(layout));
          DeviceRows y(y_dtype, 1030, n, layout);
          Multiply(stream, moved.view(), weight, y.view());
          ASSERT_EQ(FirstDifference(expected, y.Read().Copy()), "")
              << "N " << n << ", bias " << with_bias << ", offset " << layout.offset << ", padding "
              << layout.padding;
        }
      }
    }
  }
}

// The epilogue's bits are those of the GELU kernels on the product's FP32 output, by cuBLASLt and
// by tiles, in every layout, with more rows than are staged at a time.
TEST_P(GpuLinear, BiasAndGelu) {
  GpuStream stream;
  for (const auto& [m, n, k] : {std::tuple{1, 8, 16}, {5, 70, 149}, {1030, 128, 64}, {3, 72, 0}}) {
    const Tensor w = Normals(dtype(), n, k, 0.2, 1);
    const Tensor b = Normals(DType::kF32, 1, n, 1, 2);
    const Tensor x = Normals(dtype(), m, k, 1, 3);
    for (const bool with_bias : {false, true}) {
      const LinearWeight weight = Prepared(w, with_bias ? &b : nullptr);
      const DeviceRows dense_x(x.Copy());
      DeviceRows sums(DType::kF32, m, n);
      Multiply(stream, dense_x.view(), weight, sums.view());
      for (const GeluForm form : {GeluForm::kErf, GeluForm::kTanh}) {
        for (const DType y_dtype : OutputDTypes()) {
          DeviceRows composed(y_dtype, m, n);
          const absl::Status gelu = form == GeluForm::kErf
                                        ? GeluErf(stream.context(), sums.view(), composed.view())
                                        : GeluTanh(stream.context(), sums.view(), composed.view());
          ASSERT_TRUE(gelu.ok()) << gelu;
          stream.Wait();
          const Tensor expected = composed.Read().Copy();
          for (const Layout layout : {Layout{0, 0}, Layout{1, 0}, Layout{0, 8}, Layout{5, 1}}) {
            const DeviceRows moved(x.Copy(layout));
            DeviceRows y(y_dtype, m, n, layout);
            const absl::Status status =
                LinearBiasGelu(stream.context(), moved.view(), weight, form, y.view());
            ASSERT_TRUE(status.ok()) << status;
            stream.Wait();
            ASSERT_EQ(FirstDifference(expected, y.Read().Copy()), "")
                << "N " << n << ", bias " << with_bias << ", offset " << layout.offset
                << ", padding " << layout.padding;
          }
        }
      }
    }
  }
}

TEST_P(GpuLinear, OnePlanServesManyStreamsAtATime) {
  const LinearWeight weight = Prepared(Normals(dtype(), 1536, 576, 0.05, 1));
  const DeviceRows x(Normals(dtype(), 512, 576, 1, 2));
  DeviceRows once(dtype(), 512, 1536);
  {
    GpuStream stream;
    Multiply(stream, x.view(), weight, once.view());
  }
  const Tensor expected = once.Read().Copy();
  std::vector<std::string> differences(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < differences.size(); ++t) {
    threads.emplace_back([&, t] {
      GpuStream stream;
      for (int round = 0; round < 50 && differences[t].empty(); ++round) {
        const int64_t first = (round * 37 + static_cast<int64_t>(t) * 11) % 256;
        DeviceRows y(dtype(), 256, 1536);
        const absl::Status status = Linear(stream.context(), x.view(first, 256), weight, y.view());
        stream.Wait();
        if (!status.ok() || !SameRows(expected, first, y.Read(), 256)) {
          differences[t] = absl::StrCat("round ", round, ": ", std::string(status.message()));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& difference : differences) EXPECT_EQ(difference, "");
}

}  // namespace
}  // namespace fuseblock::testing
