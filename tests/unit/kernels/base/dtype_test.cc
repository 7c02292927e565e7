#include "kernels/base/dtype.h"

#include "gtest/gtest.h"
#include "kernels/base/half.h"

namespace fuseblock {
namespace {

constexpr DType kAll[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI32, DType::kI64};

TEST(DType, TableIsInTheEnumsOrder) {
  for (const DType dtype : kAll) EXPECT_EQ(Traits(dtype).dtype, dtype);
}

TEST(DType, NamesComeBack) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(DTypeFromName(Name(dtype)), dtype);
    EXPECT_EQ(DTypeFromSafetensors(Traits(dtype).safetensors), dtype);
  }
  for (const char* name : {"", "bf16", "F32", "FP8", "FP32 "}) {
    EXPECT_EQ(DTypeFromName(name), std::nullopt) << name;
  }
  for (const char* name : {"", "FP32", "bf16", "F8_E4M3", "I8"}) {
    EXPECT_EQ(DTypeFromSafetensors(name), std::nullopt) << name;
  }
}

TEST(DType, EpsilonIsTheStepAfterOne) {
  for (const DType dtype : kFloatDTypes) {
    const double next = VisitFloat(dtype, [&](auto type) {
      using T = decltype(type);
      return static_cast<double>(ToFloat(FromDouble<T>(1 + Traits(dtype).epsilon)));
    });
    const double none = VisitFloat(dtype, [&](auto type) {
      using T = decltype(type);
      return static_cast<double>(ToFloat(FromDouble<T>(1 + Traits(dtype).epsilon / 2)));
    });
    EXPECT_EQ(next, 1 + Traits(dtype).epsilon) << Name(dtype);
    EXPECT_EQ(none, 1.0) << Name(dtype);
  }
}

}  // namespace
}  // namespace fuseblock
