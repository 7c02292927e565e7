// Time that goes on when the test says so.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <list>
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
    std::list<Sleeper>::iterator mine;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (now_ >= until) return;
      mine = sleepers_.insert(sleepers_.end(), {&wake, lock.mutex(), until});
    }
    wake.wait(lock);
    std::lock_guard<std::mutex> guard(mutex_);
    sleepers_.erase(mine);
  }

  // Wakes those whose time has come, and nobody else: who waits for too late a time waits for ever.
  void Advance(absl::Duration by) {
    std::vector<Sleeper> sleepers;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      now_ += by;
      std::copy_if(sleepers_.begin(), sleepers_.end(), std::back_inserter(sleepers),
                   [this](const Sleeper& s) { return now_ >= s.until; });
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
    absl::Time until;
  };
  mutable std::mutex mutex_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::list<Sleeper> sleepers_;
};

}  // namespace fuseblock::testing
