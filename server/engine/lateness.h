// How much longer than predicted requests take to finish: the factor that nearly all stay within.
//
// A prediction is a mean, and what is admitted at the edge of its deadline on a mean is late half
// of the time, having cost as much as if it had been in time. The factor is the 0.99 quantile of
// actual to predicted, followed from request to request: one that was later than the factor allows
// raises it by 99 small steps, one within lowers it by a single one.
#pragma once

#include "absl/time/time.h"

namespace fuseblock {

// Not thread-safe.
class Lateness {
 public:
  // A request was predicted to finish in `predicted` when it was admitted and took `actual`.
  void Observe(absl::Duration predicted, absl::Duration actual);

  // What a prediction is to be multiplied with before a deadline is held against it; at least 1.
  double Factor() const { return factor_; }

 private:
  double factor_ = kFirst;

  // Of the first requests nobody knows how far off they are.
  static constexpr double kFirst = 1.25;
  // A device that has become that much slower is the cost model's to notice.
  static constexpr double kMax = 4;
  static constexpr double kStep = 0.001;
  static constexpr double kLateSteps = 99;  // to one for a request in time
};

}  // namespace fuseblock
