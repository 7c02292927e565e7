#include "server/engine/buckets.h"

#include <gtest/gtest.h>

namespace fuseblock {
namespace {

TEST(BucketsTest, TheSmallestThatHoldsTheBatch) {
  for (int64_t tokens = 1; tokens <= kBucketTokensMax; ++tokens) {
    const int bucket = BucketOf(tokens);
    ASSERT_GE(bucket, 0) << tokens;
    EXPECT_GE(kTokenBuckets[bucket], tokens);
    if (bucket > 0) {
      EXPECT_LT(kTokenBuckets[bucket - 1], tokens);
    }
    EXPECT_LT(kTokenBuckets[bucket], 2 * tokens) << "more padding than tokens";
  }
}

TEST(BucketsTest, EachSizeIsItsOwn) {
  for (int i = 0; i < kTokenBucketCount; ++i) EXPECT_EQ(BucketOf(kTokenBuckets[i]), i);
}

TEST(BucketsTest, NoneForNothingAndForWhatIsLarger) {
  for (const int64_t tokens : {int64_t{-1}, int64_t{0}, kBucketTokensMax + 1, INT64_MAX}) {
    EXPECT_EQ(BucketOf(tokens), -1) << tokens;
  }
}

TEST(BucketsTest, AsManyAsTheLargestBatchCanUse) {
  EXPECT_EQ(BucketsUpTo(1), 1);
  EXPECT_EQ(BucketsUpTo(64), 7);
  EXPECT_EQ(BucketsUpTo(65), 8);
  EXPECT_EQ(BucketsUpTo(4096), 8);
}

}  // namespace
}  // namespace fuseblock
