#include "kernels/base/tensor_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fuseblock {
namespace {

using ::testing::HasSubstr;

TensorView View(std::initializer_list<int64_t> dims, std::initializer_list<int64_t> strides = {}) {
  static float data[1];
  TensorView view(data, DType::kF32, dims);
  std::copy(strides.begin(), strides.end(), view.stride.begin());
  return view;
}

TEST(TensorView, DenseStridesAreRowMajor) {
  const TensorView view = View({2, 3, 5});
  EXPECT_EQ(view.stride[0], 15);
  EXPECT_EQ(view.stride[1], 5);
  EXPECT_EQ(view.stride[2], 1);
  EXPECT_EQ(view.rows(), 6);
  EXPECT_EQ(view.cols(), 5);
  EXPECT_EQ(view.elements(), 30);
}

TEST(TensorView, CountsBeyondTwoToTheThirtyTwo) {
  const TensorView view = View({262144, 8, 8960});
  EXPECT_EQ(view.elements(), int64_t{262144} * 8 * 8960);
  EXPECT_EQ(AsRows("x", view)->stride, 8960);
  EXPECT_EQ(AsRows("x", view)->rows, 2097152);
}

struct CollapseCase {
  std::initializer_list<int64_t> dims, strides;
  int64_t rows, cols, stride;
};

TEST(AsRows, CollapsesLeadingAxes) {
  const CollapseCase cases[] = {
      {{7}, {1}, 1, 7, 7},
      {{4, 7}, {7, 1}, 4, 7, 7},
      {{4, 7}, {10, 1}, 4, 7, 10},
      {{2, 3, 7}, {30, 10, 1}, 6, 7, 10},
      {{2, 1, 7}, {30, 999, 1}, 2, 7, 30},  // an axis of one element may have any stride
      {{1, 3, 7}, {999, 10, 1}, 3, 7, 10},
      {{2, 3, 1}, {3, 1, 77}, 6, 1, 1},  // so may the last
      {{0, 7168}, {7168, 1}, 0, 7168, 7168},
      {{3, 0}, {0, 1}, 3, 0, 0},
      {{2, 0, 7}, {5, 3, 1}, 0, 7, 7},  // nothing to walk, so no stride matters
  };
  for (const CollapseCase& c : cases) {
    const auto rows = AsRows("x", ConstTensorView(View(c.dims, c.strides)));
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(rows->rows, c.rows);
    EXPECT_EQ(rows->cols, c.cols);
    EXPECT_EQ(rows->stride, c.stride);
  }
}

TEST(AsRows, RefusesWhatDoesNotCollapse) {
  const auto message = [](const TensorView& view) {
    return std::string(AsRows("x", ConstTensorView(view)).status().message());
  };
  EXPECT_THAT(message(View({})), HasSubstr("x: expected rank >= 1"));
  EXPECT_THAT(message(View({4, 7}, {14, 2})),
              HasSubstr("x: axis 1 must be contiguous (stride 1), got stride 2"));
  EXPECT_THAT(message(View({2, 3, 7}, {31, 10, 1})),
              HasSubstr("x: axis 0 must have stride 30 to collapse into rows, got stride 31"));
  EXPECT_THAT(message(View({4, 7}, {-7, 1})),
              HasSubstr("x: axis 0 must have a stride >= 0, got stride -7"));
}

TEST(AsRows, OnlyAReaderMayRepeatRows) {
  const TensorView repeated = View({4, 7}, {0, 1});
  EXPECT_EQ(AsRows("x", ConstTensorView(repeated))->stride, 0);
  EXPECT_FALSE(AsRows("y", repeated).ok());
  EXPECT_FALSE(AsRows("y", View({4, 7}, {6, 1})).ok());
  EXPECT_TRUE(AsRows("y", View({1, 7}, {0, 1})).ok());
}

TEST(Checks, NameExpectedAndGiven) {
  const TensorView view = View({4, 7});
  EXPECT_EQ(Describe(view), "[4, 7] FP32");
  EXPECT_EQ(CheckSameShape("x", view, "y", View({4, 8})).message(),
            "y: expected the shape of x [4, 7], got [4, 8]");
  EXPECT_EQ(CheckDType("x", view, DType::kBF16).message(), "x: expected BF16, got FP32");
  EXPECT_EQ(CheckVector("w", View({8}), 7).message(), "w: expected a contiguous [7], got [8] FP32");
  EXPECT_FALSE(CheckVector("w", View({7}, {2}), 7).ok());
  EXPECT_TRUE(CheckVector("w", View({1}, {5}), 1).ok());
  EXPECT_TRUE(CheckDTypeOrF32("x", view, DType::kF16).ok());
  EXPECT_EQ(CheckDevice("x", view, {DeviceType::kCuda, 2}).message(),
            "x: expected on cuda:2, got cpu");
}

class Overlap : public ::testing::Test {
 protected:
  TensorView At(int64_t element, std::initializer_list<int64_t> dims, int64_t row_stride) {
    TensorView view(buffer_ + element, DType::kF32, dims);
    view.stride[0] = row_stride;
    return view;
  }
  bool Allowed(const TensorView& out, const ConstTensorView& in) {
    return CheckNoPartialOverlap("y", out, "x", in).ok();
  }

  float buffer_[256] = {};
};

TEST_F(Overlap, ItselfOrApart) {
  const TensorView x = At(0, {4, 8}, 8);
  EXPECT_TRUE(Allowed(x, x));
  EXPECT_TRUE(Allowed(At(32, {4, 8}, 8), x));
  EXPECT_FALSE(Allowed(At(31, {4, 8}, 8), x));
  EXPECT_FALSE(Allowed(At(8, {4, 8}, 8), x)) << "one row further";
  EXPECT_FALSE(Allowed(At(0, {4, 8}, 16), x)) << "the same memory, other rows";
  EXPECT_FALSE(CheckApart("y", x, "x", x).ok());
}

// The halves of a packed [4, 16] tensor interleave but share nothing.
TEST_F(Overlap, ColumnsOfAWiderTensor) {
  EXPECT_TRUE(Allowed(At(0, {4, 8}, 16), At(8, {4, 8}, 16)));
  EXPECT_TRUE(Allowed(At(8, {4, 8}, 16), At(0, {4, 8}, 16)));
  EXPECT_TRUE(Allowed(At(8, {4, 8}, 16), At(32, {2, 8}, 16)));
  EXPECT_FALSE(Allowed(At(7, {4, 8}, 16), At(0, {4, 8}, 16)));
  EXPECT_FALSE(Allowed(At(9, {4, 8}, 16), At(0, {4, 8}, 16))) << "its end is the next row's begin";
}

TEST_F(Overlap, EmptyTouchesNothing) { EXPECT_TRUE(Allowed(At(3, {0, 8}, 8), At(0, {4, 8}, 8))); }

}  // namespace
}  // namespace fuseblock
