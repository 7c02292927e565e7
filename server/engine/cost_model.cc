#include "server/engine/cost_model.h"

#include <algorithm>
#include <bit>

namespace fuseblock {

int CostModel::BucketOf(int64_t tokens) {
  const uint64_t below = static_cast<uint64_t>(std::max<int64_t>(tokens, 1)) - 1;
  return std::min(static_cast<int>(std::bit_width(below)), kBuckets - 1);
}

void CostModel::Observe(int64_t tokens, absl::Duration took, absl::Time now) {
  if (const absl::Duration expected = Predict(tokens); expected > absl::ZeroDuration()) {
    undisturbed_ = std::min({undisturbed_ * kForget, absl::FDivDuration(took, expected), 1.0});
  }
  Bucket& bucket = seen_[BucketOf(tokens)];
  bucket.count = bucket.count * kKeep + 1;
  bucket.n = bucket.n * kKeep + static_cast<double>(std::max<int64_t>(tokens, 1));
  bucket.t = bucket.t * kKeep + absl::ToDoubleSeconds(took);
  observed_ = now;
}

void CostModel::Measure(int64_t tokens, absl::Duration took) {
  const double n = static_cast<double>(std::max<int64_t>(tokens, 1));
  measured_[BucketOf(tokens)] = {1, n, absl::ToDoubleSeconds(took)};
  seen_[BucketOf(tokens)] = measured_[BucketOf(tokens)];
}

CostModel::Around CostModel::Find(const Buckets& buckets, double n) {
  Around around;
  for (const Bucket& bucket : buckets) {
    if (bucket.count == 0) continue;
    const Point point{bucket.n / bucket.count, bucket.t / bucket.count};
    if (point.n > n) {
      around.above = point;
      break;
    }
    around.before = around.below;
    around.below = point;
  }
  return around;
}

absl::Duration CostModel::At(const Buckets& buckets, int64_t tokens) {
  const double n = static_cast<double>(std::max<int64_t>(tokens, 1));
  const auto& [before, below, above] = Find(buckets, n);
  if (below.n == 0) return absl::Seconds(above.n == 0 ? 0 : above.t * n / above.n);
  if (above.n == 0) {
    if (before.n == 0) return absl::Seconds(below.t);
    const double slope = (below.t - before.t) / (below.n - before.n);
    return absl::Seconds(below.t + std::clamp(slope, 0.0, below.t / below.n) * (n - below.n));
  }
  return absl::Seconds(below.t + (above.t - below.t) / (above.n - below.n) * (n - below.n));
}

absl::Duration CostModel::PredictAtMost(int64_t tokens) const {
  const double n = static_cast<double>(std::max<int64_t>(tokens, 1));
  const auto& [before, below, above] = Find(seen_, n);
  if (below.n == 0 && above.n == 0) return absl::InfiniteDuration();
  const absl::Duration mean = below.n == 0   ? absl::Seconds(above.t)
                              : above.n == 0 ? absl::Seconds(below.t * n / below.n)
                                             : Predict(tokens);
  return mean * undisturbed_;
}

absl::Duration CostModel::Certain(int64_t tokens, absl::Time now) const {
  return Trusted(now) ? Predict(tokens) : At(measured_, tokens) / 2;
}

}  // namespace fuseblock
