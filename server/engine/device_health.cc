#include "server/engine/device_health.h"

#include <algorithm>

namespace fuseblock {

bool DeviceHealthMachine::Failed(FallbackCause cause, const std::string& reason, absl::Time now) {
  if (cause == FallbackCause::kHung) ++stuck_;
  if (cause == FallbackCause::kOutOfMemory && ++out_of_memory_ < kOutOfMemoryInARow) return false;
  if (state_ == DeviceHealth::kLost) return false;
  const bool was_healthy = takes_work();
  if (cause == FallbackCause::kDeviceLost) {
    state_ = DeviceHealth::kLost;
    next_probe_ = absl::InfiniteFuture();
  } else if (was_healthy) {
    if (now - recovered_ >= kLastProbe) delay_ = kFirstProbe / 2;
    Postpone(now);
  } else if (state_ == DeviceHealth::kProbing) {
    Postpone(now);
  } else {
    return false;  // a batch that was on its way when another one's failure was told
  }
  cause_ = cause;
  reason_ = reason;
  return was_healthy;
}

void DeviceHealthMachine::Postpone(absl::Time now) {
  delay_ = std::min(delay_ * 2, kLastProbe);
  state_ = DeviceHealth::kQuarantined;
  next_probe_ = now + delay_;
}

absl::Time DeviceHealthMachine::next_probe() const {
  if (state_ != DeviceHealth::kQuarantined || stuck_ > 0) return absl::InfiniteFuture();
  return next_probe_;
}

int64_t DeviceHealthMachine::StartProbe(int lanes) {
  state_ = DeviceHealth::kProbing;
  unprobed_ = lanes;
  return ++round_;
}

bool DeviceHealthMachine::Probed(int64_t round, bool right, const std::string& reason,
                                 absl::Time now) {
  if (state_ != DeviceHealth::kProbing || round != round_) return false;
  if (!right) {
    reason_ = reason;
    Postpone(now);
    return false;
  }
  if (--unprobed_ > 0) return false;
  state_ = DeviceHealth::kHealthy;
  recovered_ = now;
  out_of_memory_ = 0;
  return true;
}

}  // namespace fuseblock
