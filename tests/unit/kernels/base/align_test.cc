#include "kernels/base/align.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "gtest/gtest.h"

namespace fuseblock {
namespace {

TEST(Align, RoundsUpToTheNextMultiple) {
  EXPECT_EQ(RoundUp(0, 3), 0);
  EXPECT_EQ(RoundUp(1, 3), 3);
  EXPECT_EQ(RoundUp(3, 3), 3);
  EXPECT_EQ(RoundUp(4, 3), 6);
}

TEST(Align, ATensorTakesWhole256Bytes) {
  for (const auto& [bytes, taken] : {std::pair(0, 0), {1, 256}, {256, 256}, {257, 512}}) {
    EXPECT_EQ(AlignTensor(int64_t{bytes}), taken);
    EXPECT_EQ(AlignTensor(static_cast<size_t>(bytes)), static_cast<size_t>(taken));
  }
}

}  // namespace
}  // namespace fuseblock
