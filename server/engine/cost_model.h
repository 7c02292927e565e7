// How long a block's batch takes on one device, by its size: one estimate for each bucket of sizes
// (1, 2, 3 to 4, 5 to 8, ...), measured when the block is loaded and corrected by every batch that
// runs, newer ones counting more. Between the sizes that were seen it is interpolated.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace fuseblock {

// Not thread-safe.
class CostModel {
 public:
  // A batch of that many tokens took that long, from gathering to the answer.
  void Observe(int64_t tokens, absl::Duration took, absl::Time now);
  // The same at load, with nothing else running: the fastest of several runs.
  void Measure(int64_t tokens, absl::Duration took);

  // Zero while nothing is known. Below the smallest size that was seen it is scaled down, and above
  // the largest it grows as between the largest two, or not at all while only one is known: a
  // refusal needs evidence.
  absl::Duration Predict(int64_t tokens) const { return At(seen_, tokens); }
  // For a caller that must not wait longer: fewer tokens than were seen cost as much, more cost in
  // proportion, and what was never seen takes for ever. Interruptions are left out: on a busy
  // machine most batches are interrupted, which would be no shorter on another thread.
  absl::Duration PredictAtMost(int64_t tokens) const;

  // Whether the newest batch is recent enough for its like to be predicted.
  bool Trusted(absl::Time now) const { return now - observed_ < kTrust; }
  // What a refusal may rest on. An old estimate must not be believed: if nothing is let through,
  // nothing corrects it. Then half of what was measured at load is left, which no noise can make
  // too much of.
  absl::Duration Certain(int64_t tokens, absl::Time now) const;

 private:
  static constexpr absl::Duration kTrust = absl::Seconds(1);
  // The weight of a batch one batch of its bucket later: some ten batches count.
  static constexpr double kKeep = 0.9;
  static constexpr int kBuckets = 26;  // up to 2^25 tokens

  // Decayed sums over batches of n tokens and t seconds.
  struct Bucket {
    double count = 0, n = 0, t = 0;
  };
  using Buckets = std::array<Bucket, kBuckets>;
  // The sizes that were seen next to n, and what they took; n == 0 for one that is not there.
  struct Point {
    double n = 0, t = 0;
  };
  struct Around {
    Point before, below, above;  // below: at most n; before: the next smaller
  };
  static int BucketOf(int64_t tokens);
  static Around Find(const Buckets& buckets, double n);
  static absl::Duration At(const Buckets& buckets, int64_t tokens);

  Buckets seen_, measured_;
  // The fastest of the last batches, as a share of what was expected of it.
  double undisturbed_ = 1;
  static constexpr double kForget = 1.02;  // one batch later
  absl::Time observed_ = absl::InfinitePast();
};

}  // namespace fuseblock
