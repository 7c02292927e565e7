#include "server/poll_spin.h"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>

#include "server/engine/handover.h"

namespace fuseblock {
namespace {

// Events that follow one another closer than that are of one request, and say nothing of the next.
constexpr absl::Duration kSameRequest = absl::Microseconds(20);

// The system call by its other name, which is still the C library's (and a sanitizer's).
int Poll(int epoll, epoll_event* events, int events_max, int timeout_ms) {
  return epoll_pwait(epoll, events, events_max, timeout_ms, nullptr);
}

class Spinner {
 public:
  void SetMax(absl::Duration spin_max) {
    std::lock_guard<std::mutex> lock(mutex_);
    policy_.emplace(spin_max);
    enabled_ = spin_max > absl::ZeroDuration();
  }

  int Wait(int epoll, epoll_event* events, int events_max, int timeout_ms) {
    if (!enabled_ || timeout_ms == 0) return Poll(epoll, events, events_max, timeout_ms);
    const auto begin = std::chrono::steady_clock::now();
    int found = Spin(epoll, events, events_max, timeout_ms);
    if (found == 0) {
      const auto spent = absl::FromChrono(std::chrono::steady_clock::now() - begin);
      found = Poll(epoll, events, events_max, TimeoutLeft(timeout_ms, spent));
    }
    const auto waited = absl::FromChrono(std::chrono::steady_clock::now() - begin);
    if (waited < kSameRequest) return found;
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock) policy_->Waited(waited);
    return found;
  }

 private:
  // 0: nothing came, or it may not look out.
  int Spin(int epoll, epoll_event* events, int events_max, int timeout_ms) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || !policy_->Worthwhile()) return 0;
    absl::Duration spin_max = policy_->spin_max();
    if (timeout_ms > 0) spin_max = std::min(spin_max, absl::Milliseconds(timeout_ms));
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(spin_max);
    int found = 0;
    do {
      found = Poll(epoll, events, events_max, 0);
    } while (found == 0 && std::chrono::steady_clock::now() < end);
    if (found == 0) policy_->Missed();
    return found;
  }

  std::atomic<bool> enabled_{false};
  std::mutex mutex_;  // of the policy, and held by the thread that looks out
  std::optional<SpinPolicy> policy_;
};

Spinner& TheSpinner() {
  static auto* spinner = new Spinner();
  return *spinner;
}

}  // namespace

int TimeoutLeft(int timeout_ms, absl::Duration spent) {
  if (timeout_ms < 0) return timeout_ms;
  const absl::Duration left = absl::Milliseconds(timeout_ms) - spent;
  return static_cast<int>(
      std::max<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), 0));
}

void SpinBeforeSleeping(absl::Duration spin_max) { TheSpinner().SetMax(spin_max); }

}  // namespace fuseblock

extern "C" int epoll_wait(int epoll, epoll_event* events, int events_max, int timeout_ms) {
  return fuseblock::TheSpinner().Wait(epoll, events, events_max, timeout_ms);
}
