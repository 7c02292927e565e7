// How much longer than predicted requests wait: the factor that nearly all stay within.
//
// A prediction is a mean, and what is admitted at the edge of its deadline on a mean is late half
// of the time, having cost as much as if it had been in time. What a wait is stretched by is the
// 0.999 quantile of actual to predicted, followed from request to request: one that was later than
// the factor allows raises it by 999 small steps, one within lowers it by a single one. Machines
// are slow for a second at a time and make all that waits late together, so what was learnt from
// one such second must last until the next.
//
// A request's own time on a lane is not stretched: one that finds nothing before it is let try.
#pragma once

#include "absl/time/time.h"

namespace fuseblock {

// Of a request, when it is admitted: how long until a lane begins it, and from then to its answer.
struct Prediction {
  absl::Duration wait, own;
};

// Not thread-safe.
class Lateness {
 public:
  // A request took that long from admission to its answer. One that was predicted to run for longer
  // than it waits may be late by its own time's noise, of which nothing is learnt; that it is in
  // time counts, or a factor that lets no others through would stay for ever.
  void Observe(const Prediction& predicted, absl::Duration actual);

  // What a deadline is held against.
  absl::Duration Bound(const Prediction& predicted) const {
    return predicted.wait * factor_ + predicted.own;
  }
  double factor() const { return factor_; }  // 1 to 4

 private:
  // Of the first requests nobody knows how far off they are. Too much costs little: what is refused
  // too early had others before it, which keep the lanes busy.
  double factor_ = 2;

  // A device that has become that much slower is the cost model's to notice.
  static constexpr double kMax = 4;
  static constexpr double kStep = 0.0001;
  static constexpr double kLateSteps = 999;  // to one for a request in time
};

}  // namespace fuseblock
