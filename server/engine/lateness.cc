#include "server/engine/lateness.h"

#include <algorithm>

namespace fuseblock {

void Lateness::Observe(absl::Duration predicted, absl::Duration actual) {
  if (predicted <= absl::ZeroDuration()) return;  // nothing was known
  const bool late = actual > predicted * factor_;
  factor_ = std::clamp(factor_ + (late ? kLateSteps : -1.0) * kStep, 1.0, kMax);
}

}  // namespace fuseblock
