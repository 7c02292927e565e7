#include "server/engine/clock.h"

#include <algorithm>
#include <chrono>

namespace fuseblock {
namespace {

class Monotonic final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() +
           absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  void WaitUntil(std::condition_variable& wake, std::unique_lock<std::mutex>& lock,
                 absl::Time until) override {
    if (until == absl::InfiniteFuture()) {
      wake.wait(lock);
      return;
    }
    const absl::Duration wait = std::min(until - Now(), absl::Hours(1));
    wake.wait_for(lock, absl::ToChronoNanoseconds(wait));
  }
};

}  // namespace

Clock& MonotonicClock() {
  static auto* clock = new Monotonic();  // never destroyed: threads may outlive main's objects
  return *clock;
}

}  // namespace fuseblock
