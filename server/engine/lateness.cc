#include "server/engine/lateness.h"

#include <algorithm>

namespace fuseblock {

void Lateness::Observe(const Prediction& predicted, absl::Duration actual) {
  if (predicted.wait <= predicted.own) return;
  const bool late = actual > Bound(predicted);
  factor_ = std::clamp(factor_ + (late ? kLateSteps : -1.0) * kStep, 1.0, kMax);
}

}  // namespace fuseblock
