// How long a block's batch takes on one device: a fixed part and a part per token, fitted to what
// was measured, newer batches counting more.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace fuseblock {

// Not thread-safe.
class CostModel {
 public:
  // A batch of that many tokens took that long, from gathering to the answer.
  void Observe(int64_t tokens, absl::Duration took, absl::Time now);

  // Zero until something was observed. While all batches were of one size, which tells the two
  // parts not apart, all is taken as fixed, and Predict scales it down for fewer tokens: a refusal
  // needs evidence.
  absl::Duration Fixed() const { return fixed_; }
  absl::Duration PerToken() const { return per_token_; }
  absl::Duration Predict(int64_t tokens) const;
  // For a caller that must not wait longer: more tokens than were seen cost in proportion, and what
  // was never seen takes for ever.
  absl::Duration PredictAtMost(int64_t tokens) const;

  // Whether the newest batch is recent enough for a refusal to rest on. An old one must not: if
  // nothing is let through, nothing corrects the estimate.
  bool Trusted(absl::Time now) const { return now - observed_ < kTrust; }

 private:
  static constexpr absl::Duration kTrust = absl::Seconds(1);
  static constexpr double kKeep =
      0.9;  // the weight of a batch one batch later: some ten batches count

  // Decayed sums of 1, n, n^2, t, n t over batches of n tokens and t seconds.
  double count_ = 0, n_ = 0, nn_ = 0, t_ = 0, nt_ = 0;
  absl::Duration fixed_, per_token_;
  double one_size_ = 0;  // the size, while there was only one; else 0
  absl::Time observed_ = absl::InfinitePast();
};

}  // namespace fuseblock
