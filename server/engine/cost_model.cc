#include "server/engine/cost_model.h"

#include <algorithm>

namespace fuseblock {

void CostModel::Observe(int64_t tokens, absl::Duration took, absl::Time now) {
  const double n = static_cast<double>(tokens);
  const double t = absl::ToDoubleSeconds(took);
  count_ = count_ * kKeep + 1;
  n_ = n_ * kKeep + n;
  nn_ = nn_ * kKeep + n * n;
  t_ = t_ * kKeep + t;
  nt_ = nt_ * kKeep + n * t;
  observed_ = now;

  // Least squares of t = fixed + slope n, with noise kept from making a part negative.
  const double mean_n = n_ / count_;
  const double mean_t = t_ / count_;
  const double variance = nn_ / count_ - mean_n * mean_n;
  double slope = 0;
  one_size_ = mean_n;
  if (variance > 1e-3 * mean_n * mean_n) {
    one_size_ = 0;
    slope = (nt_ / count_ - mean_n * mean_t) / variance;
    slope = std::clamp(slope, 0.0, mean_n > 0 ? mean_t / mean_n : 0.0);
  }
  per_token_ = absl::Seconds(slope);
  fixed_ = absl::Seconds(std::max(0.0, mean_t - slope * mean_n));
}

absl::Duration CostModel::Predict(int64_t tokens) const {
  if (one_size_ > 0) {
    return fixed_ * std::min(1.0, static_cast<double>(tokens) / one_size_);
  }
  return fixed_ + per_token_ * tokens;
}

absl::Duration CostModel::PredictAtMost(int64_t tokens) const {
  if (count_ == 0) return absl::InfiniteDuration();
  if (one_size_ > 0) return fixed_ * std::max(1.0, static_cast<double>(tokens) / one_size_);
  return fixed_ + per_token_ * tokens;
}

}  // namespace fuseblock
