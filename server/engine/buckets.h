// Token buckets: the batch sizes for which a lane holds a block's launches captured as a graph. A
// batch runs the graph of the smallest bucket that holds it, its missing rows filled with zeros.
//
// A small batch is bound by its launches, which a graph makes one; a large one is not, so it is
// launched directly and pays for no padding.
#pragma once

#include <cstdint>

namespace fuseblock {

// Ascending, each at most twice the one before: padding is never more than half of what runs. 8 to
// 128 are the widths of the tensor cores' instructions.
inline constexpr int64_t kTokenBuckets[] = {1, 2, 4, 8, 16, 32, 64, 128};
inline constexpr int kTokenBucketCount = sizeof(kTokenBuckets) / sizeof(kTokenBuckets[0]);
inline constexpr int64_t kBucketTokensMax = kTokenBuckets[kTokenBucketCount - 1];

// The index of the smallest bucket that holds so many tokens, or -1 when none does or there is
// nothing to run.
constexpr int BucketOf(int64_t tokens) {
  if (tokens <= 0) return -1;
  for (int i = 0; i < kTokenBucketCount; ++i) {
    if (tokens <= kTokenBuckets[i]) return i;
  }
  return -1;
}

// How many of the buckets batches of at most so many tokens can use: the first ones.
constexpr int BucketsUpTo(int64_t tokens_max) {
  const int last = BucketOf(tokens_max);
  return last < 0 ? kTokenBucketCount : last + 1;
}

}  // namespace fuseblock
