// The engine's time. Tests drive their own (tests/unit/server/engine/simulated_clock.h), so that
// nothing in them waits for a second to pass.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace fuseblock {

// Thread-safe. Goes only forward, whatever is done to the wall clock.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  // Waits for a notification of `wake`, or until `until` has come on this clock; may return early.
  virtual void WaitUntil(std::condition_variable& wake, std::unique_lock<std::mutex>& lock,
                         absl::Time until) = 0;
};

// The machine's monotonic clock, counted from the epoch.
Clock& MonotonicClock();

}  // namespace fuseblock
