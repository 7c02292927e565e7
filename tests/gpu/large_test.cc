// What only a GPU's memory holds: more than 2^31 elements, and the last row of a table beyond that
// offset.
#include <functional>

#include "kernels/add_residual/add_residual.h"
#include "kernels/embedding/embedding.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/softmax/softmax.h"
#include "kernels/softmax_masked/softmax_masked.h"
#include "tests/gpu/device_rows.h"

namespace fuseblock::testing {
namespace {

// One row of FP16 ones at `offset` elements into memory that is zero elsewhere.
void PutOnes(const Buffer& buffer, int64_t offset, int64_t columns) {
  Tensor ones(DType::kF16, 1, columns);
  for (int64_t i = 0; i < columns; ++i) ones.Set(0, i, static_cast<double>(i % 97));
  ASSERT_EQ(Gpu().memset_async(0, buffer.data(), 0, buffer.size(), nullptr), 0);
  ASSERT_EQ(
      Gpu().copy_async(0, buffer.data() + offset * 2, ones.memory(), ones.memory_bytes(), nullptr),
      0);
  ASSERT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
}

// One row at `offset` elements, read back.
Tensor RowAt(const Buffer& buffer, int64_t offset, int64_t columns) {
  Tensor row(DType::kF16, 1, columns);
  EXPECT_EQ(
      Gpu().copy_async(0, row.memory(), buffer.data() + offset * 2, row.memory_bytes(), nullptr),
      0);
  EXPECT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
  return row;
}

TEST(GpuLarge, EmbeddingOfTheLastRowOfALargeTable) {
  constexpr int64_t kVocabulary = 262144;
  constexpr int64_t kHidden = 8960;
  const Buffer table = GpuBuffer(kVocabulary * kHidden * 2);
  ASSERT_NO_FATAL_FAILURE(PutOnes(table, (kVocabulary - 1) * kHidden, kHidden));
  Tensor ids(DType::kI32, 1, 3);
  ids.Set(0, 0, kVocabulary - 1);
  ids.Set(0, 1, 0);
  ids.Set(0, 2, kVocabulary - 1);
  DeviceRows device_ids(ids.Copy());
  DeviceRows y(DType::kF16, 3, kHidden);
  const ConstTensorView view = TensorView(table.data(), DType::kF16, {kVocabulary, kHidden}, kGpu);
  GpuStream stream;
  const absl::Status status =
      Embedding(stream.context(), device_ids.vector(), view, 1.0f, y.view());
  ASSERT_TRUE(status.ok()) << status;
  stream.Wait();
  const Tensor& got = y.Read();
  for (int64_t i = 0; i < kHidden; ++i) {
    ASSERT_EQ(got.At(0, i), static_cast<double>(i % 97));
    ASSERT_EQ(got.At(1, i), 0);
    ASSERT_EQ(got.At(2, i), static_cast<double>(i % 97));
  }
}

TEST(GpuLarge, MoreThan2To31Elements) {
  constexpr int64_t kColumns = 8192;
  constexpr int64_t kRows = (int64_t{1} << 31) / kColumns + 3;
  constexpr int64_t kLast = (kRows - 1) * kColumns;
  const Buffer x = GpuBuffer(kRows * kColumns * 2);
  const Buffer y = GpuBuffer(kRows * kColumns * 2);
  ASSERT_NO_FATAL_FAILURE(PutOnes(x, kLast, kColumns));
  ASSERT_EQ(Gpu().memset_async(0, y.data(), 0xff, y.size(), nullptr), 0);
  ASSERT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
  const TensorView x_view(x.data(), DType::kF16, {kRows, kColumns}, kGpu);
  const TensorView y_view(y.data(), DType::kF16, {kRows, kColumns}, kGpu);
  {
    GpuStream stream;
    const absl::Status status = AddResidual(stream.context(), x_view, x_view, y_view);
    ASSERT_TRUE(status.ok()) << status;
    stream.Wait();
    const Tensor last = RowAt(y, kLast, kColumns);
    const Tensor first = RowAt(y, 0, kColumns);
    for (int64_t i = 0; i < kColumns; ++i) {
      ASSERT_EQ(last.At(0, i), 2.0 * static_cast<double>(i % 97));
      ASSERT_EQ(first.At(0, i), 0);
    }
  }
  GpuStream stream;
  const absl::Status status =
      RmsNorm(stream.context(), x_view, std::nullopt, {1e-6f, 0.0f, RmsNormForm::kOnce}, y_view);
  ASSERT_TRUE(status.ok()) << status;
  stream.Wait();
  const Tensor last = RowAt(y, kLast, kColumns);
  DeviceRows alone(RowAt(x, kLast, kColumns));
  DeviceRows expected(DType::kF16, 1, kColumns);
  ASSERT_TRUE(RmsNorm(stream.context(), alone.view(), std::nullopt,
                      {1e-6f, 0.0f, RmsNormForm::kOnce}, expected.view())
                  .ok());
  stream.Wait();
  EXPECT_EQ(FirstDifference(expected.Read(), last), "");
  const Tensor middle = RowAt(y, kRows / 2 * kColumns, kColumns);
  for (int64_t i = 0; i < kColumns; ++i) ASSERT_EQ(middle.At(0, i), 0);
}

// The kernels that reduce a row: the last row beyond 2^31 elements is what it is alone, and the
// rows before it are what a row of zeros gives.
class GpuLargeRows : public ::testing::Test {
 protected:
  static constexpr int64_t kColumns = 8192;
  static constexpr int64_t kRows = (int64_t{1} << 31) / kColumns + 3;
  static constexpr int64_t kLast = (kRows - 1) * kColumns;

  using Kernel = std::function<absl::Status(const ExecutionContext&, const TensorView& x,
                                            const TensorView& y)>;
  void Expect(const Kernel& kernel, double of_zeros) {
    const Buffer x = GpuBuffer(kRows * kColumns * 2), y = GpuBuffer(kRows * kColumns * 2);
    ASSERT_NO_FATAL_FAILURE(PutOnes(x, kLast, kColumns));
    ASSERT_EQ(Gpu().memset_async(0, y.data(), 0xff, y.size(), nullptr), 0);
    ASSERT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
    GpuStream stream;
    const auto view = [](const Buffer& buffer) {
      return TensorView(buffer.data(), DType::kF16, {kRows, kColumns}, kGpu);
    };
    absl::Status status = kernel(stream.context(), view(x), view(y));
    ASSERT_TRUE(status.ok()) << status;
    DeviceRows alone(RowAt(x, kLast, kColumns)), expected(DType::kF16, 1, kColumns);
    status = kernel(stream.context(), alone.view(), expected.view());
    ASSERT_TRUE(status.ok()) << status;
    stream.Wait();
    EXPECT_EQ(FirstDifference(expected.Read(), RowAt(y, kLast, kColumns)), "");
    for (const int64_t row : {int64_t{0}, kRows / 2, kRows - 2}) {
      const Tensor zeros = RowAt(y, row * kColumns, kColumns);
      for (int64_t i = 0; i < kColumns; ++i) ASSERT_EQ(zeros.At(0, i), of_zeros) << row;
    }
  }
};

TEST_F(GpuLargeRows, LayerNorm) {
  Expect(
      [](const ExecutionContext& context, const TensorView& x, const TensorView& y) {
        return LayerNorm(context, x, std::nullopt, std::nullopt, 1e-5f, y);
      },
      0);
}

TEST_F(GpuLargeRows, Softmax) {
  Expect([](const ExecutionContext& context, const TensorView& x,
            const TensorView& y) { return Softmax(context, x, y); },
         1.0 / kColumns);
}

TEST_F(GpuLargeRows, SoftmaxMasked) {
  Expect([](const ExecutionContext& context, const TensorView& x,
            const TensorView& y) { return SoftmaxMasked(context, x, x, y); },
         1.0 / kColumns);
}

// One row of 2^20 columns.
TEST(GpuLarge, SoftmaxOfALongRow) {
  constexpr int64_t kColumns = int64_t{1} << 20;
  DeviceRows y(DType::kF32, 1, kColumns);
  Tensor values(DType::kF32, 1, kColumns);
  // -ln 2 in one column of two: powers 1 and 1/2, a sum of 3/4 of the columns.
  for (int64_t i = 0; i < kColumns; ++i) values.Set(0, i, i % 2 == 0 ? 0 : -0.6931471805599453);
  DeviceRows filled(std::move(values));
  GpuStream stream;
  const absl::Status status = Softmax(stream.context(), filled.view(), y.view());
  ASSERT_TRUE(status.ok()) << status;
  stream.Wait();
  const Tensor& got = y.Read();
  // The longest chain of the sum is 256 elements of a thread, 5 of the warp and 10 of the block.
  const double bound = (256 + 15 + 8) * 0x1p-24;
  for (int64_t i = 0; i < kColumns; ++i) {
    const double want = (i % 2 == 0 ? 1 : 0.5) / (0.75 * static_cast<double>(kColumns));
    ASSERT_NEAR(got.At(0, i), want, bound * want) << i;
  }
}

}  // namespace
}  // namespace fuseblock::testing
