// Time that goes on when the test says so.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "server/engine/clock.h"

namespace fuseblock::testing {

class SimulatedClock final : public Clock {
 public:
  absl::Time Now() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return now_;
  }

  void WaitUntil(std::condition_variable& wake, std::unique_lock<std::mutex>& lock,
                 absl::Time until) override {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (now_ >= until) return;
      sleepers_.push_back({&wake, lock.mutex()});
    }
    wake.wait(lock);
    std::lock_guard<std::mutex> guard(mutex_);
    const auto mine = std::find_if(sleepers_.begin(), sleepers_.end(),
                                   [&](const Sleeper& s) { return s.wake == &wake; });
    sleepers_.erase(mine);
  }

  // Wakes every sleeper, who look at the time for themselves.
  void Advance(absl::Duration by) {
    std::vector<Sleeper> sleepers;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      now_ += by;
      sleepers = sleepers_;
    }
    for (const Sleeper& sleeper : sleepers) {
      // One that has looked at the old time holds its mutex until it really sleeps. And none is
      // gone before the notification has been made.
      std::lock_guard<std::mutex> asleep(*sleeper.mutex);
      sleeper.wake->notify_all();
    }
  }

 private:
  struct Sleeper {
    std::condition_variable* wake;
    std::mutex* mutex;
  };
  mutable std::mutex mutex_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::vector<Sleeper> sleepers_;
};

}  // namespace fuseblock::testing
