#include "server/engine/lateness.h"

#include <algorithm>

namespace fuseblock {

void Lateness::Observe(const Prediction& predicted, absl::Duration actual) {
  const bool late = actual > Bound(predicted);
  if (predicted.wait <= (late ? predicted.own : absl::ZeroDuration())) return;
  factor_ = std::clamp(factor_ + (late ? kLateSteps : -1.0) * kStep, 1.0, kMax);
}

}  // namespace fuseblock
