// Offsets beyond 2^31 elements: a lookup in the last row of a [262144, 8960] table. Only the pages
// that are touched take memory.
#include <sys/mman.h>

#include <cstring>

#include "gtest/gtest.h"
#include "kernels/embedding/embedding.h"
#include "tests/support/numerics_variants.h"

namespace fuseblock::testing {
namespace {

// Bit patterns of every kind, NaNs with payloads among them: a lookup copies bits.
uint16_t Pattern16(int64_t column) { return static_cast<uint16_t>(column * 7); }

TEST(FarOffsets, EmbeddingBeyondTwoToTheThirtyOne) {
  constexpr int64_t kRows = 262144, kColumns = 8960;
  constexpr size_t kBytes = size_t{kRows} * kColumns * 2;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* table = static_cast<uint16_t*>(memory);
  for (int64_t column = 0; column < kColumns; ++column) {
    table[(kRows - 1) * kColumns + column] = Pattern16(column);
  }
  const int64_t ids[] = {kRows - 1, 0};
  std::vector<uint16_t> y(2 * kColumns);
  for (const Variant& variant : Variants(DescribeList(EmbeddingImplementations()))) {
    if (variant.device != DeviceType::kCpu) continue;
    const ScopedVariant scoped(variant);
    const auto args = CheckEmbedding(ConstTensorView(ids, DType::kI64, {2}),
                                     ConstTensorView(table, DType::kBF16, {kRows, kColumns}), 1.0f,
                                     TensorView(y.data(), DType::kBF16, {2, kColumns}));
    ASSERT_TRUE(args.ok()) << args.status();
    std::fill(y.begin(), y.end(), 0x5555);
    ASSERT_TRUE(RunNamed(EmbeddingImplementations(), variant.implementation, {}, *args).ok());
    for (int64_t column = 0; column < kColumns; ++column) {
      ASSERT_EQ(y[static_cast<size_t>(column)], Pattern16(column)) << variant.label;
      ASSERT_EQ(y[static_cast<size_t>(kColumns + column)], 0) << variant.label;
    }
  }
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace fuseblock::testing
