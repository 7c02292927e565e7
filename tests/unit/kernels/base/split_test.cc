#include "kernels/base/split.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace fuseblock {
namespace {

// How many tasks there were, run one after the other.
void Count(void* tasks_seen, int64_t tasks, absl::FunctionRef<void(int64_t)> task) {
  *static_cast<int64_t*>(tasks_seen) = tasks;
  for (int64_t i = 0; i < tasks; ++i) task(i);
}

TEST(ForRanges, CoversEveryUnitOnce) {
  for (const int64_t units : {0, 1, 7, 1000, 1001}) {
    for (const int64_t unit_bytes :
         {int64_t{0}, int64_t{1}, kTaskBytesMin / 3, kTaskBytesMin * 2}) {
      for (const int threads : {1, 3, 8}) {
        int64_t tasks = 0;
        std::vector<int> seen(static_cast<size_t>(units));
        ForRanges({threads, &tasks, Count}, units, unit_bytes, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(units), 1));
        EXPECT_LE(tasks, threads * kTasksPerThreadMax);
      }
    }
  }
}

TEST(ForRanges, SmallWorkIsNotHandedOver) {
  int64_t tasks = 0;
  ForRanges({8, &tasks, Count}, 100, kTaskBytesMin / 100, [](int64_t, int64_t) {});
  EXPECT_EQ(tasks, 0);
  ForRanges({8, &tasks, Count}, 200, kTaskBytesMin / 100, [](int64_t, int64_t) {});
  EXPECT_EQ(tasks, 2);
}

// Three of one length would take two threads as long as four.
TEST(ForRanges, EveryThreadHasAsManyTasks) {
  for (const auto& [units, expected] : {std::pair{2, 2}, {3, 2}, {5, 4}, {100, 8}}) {
    int64_t tasks = 0;
    ForRanges({2, &tasks, Count}, units, kTaskBytesMin, [](int64_t, int64_t) {});
    EXPECT_EQ(tasks, expected) << units;
  }
}

TEST(ElementSplit, DenseOperandsAreOneRun) {
  std::vector<float> data(3 * 1000);
  const Rows dense{data.data(), 3, 1000, 1000};
  const auto split = ElementSplit::Of(dense, dense);
  EXPECT_TRUE(split.dense);
  EXPECT_EQ(split.units(), 3);  // of 1024, the last one shorter
  const Rows last = split.Part(dense, DType::kF32, 2, 3);
  EXPECT_EQ(last.data, data.data() + 2048);
  EXPECT_EQ(last.rows, 1);
  EXPECT_EQ(last.cols, 952);
}

TEST(ElementSplit, OneStridedOperandMakesRows) {
  std::vector<float> data(3 * 1000);
  const Rows dense{data.data(), 3, 900, 900};
  const ConstRows strided{data.data(), 3, 900, 1000};
  const auto split = ElementSplit::Of(dense, strided);
  EXPECT_FALSE(split.dense);
  EXPECT_EQ(split.units(), 3);
  const ConstRows part = split.Part(strided, DType::kF32, 1, 3);
  EXPECT_EQ(part.data, data.data() + 1000);
  EXPECT_EQ(part.rows, 2);
  EXPECT_EQ(part.stride, 1000);
}

struct TwoOperands {
  ConstRows x;
  Rows y;
  DType x_dtype, y_dtype;
};

// y = x + 1 through ForElements, x with that stride.
void ExpectEveryElementOnce(int64_t rows, int64_t columns, int64_t stride) {
  std::vector<float> x(static_cast<size_t>(rows * stride));
  std::vector<double> y(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const TwoOperands args{{x.data(), rows, columns, stride},
                         {y.data(), rows, columns, columns},
                         DType::kF32,
                         DType::kI64};  // as long as double
  int64_t tasks = 0;
  ForElements(
      {3, &tasks, Count}, args, kTaskBytesMin / 1024,
      [](const TwoOperands& part) {
        for (int64_t row = 0; row < part.y.rows; ++row) {
          const float* from = static_cast<const float*>(part.x.data) + row * part.x.stride;
          double* to = static_cast<double*>(part.y.data) + row * part.y.stride;
          for (int64_t i = 0; i < part.y.cols; ++i) to[i] += from[i] + 1;
        }
      },
      std::pair(&TwoOperands::y, &TwoOperands::y_dtype),
      std::pair(&TwoOperands::x, &TwoOperands::x_dtype));
  EXPECT_GT(tasks, 1);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; ++i) {
      EXPECT_EQ(y[static_cast<size_t>(row * columns + i)], row * stride + i + 1);
    }
  }
}

TEST(ForElements, TakesEveryElementOnceWithItsOperandsByTheirDTypes) {
  ExpectEveryElementOnce(1, 5000, 5000);
  ExpectEveryElementOnce(700, 7, 7);
  ExpectEveryElementOnce(700, 7, 9);
  ExpectEveryElementOnce(5, 1000, 1001);
}

}  // namespace
}  // namespace fuseblock
