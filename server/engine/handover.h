// How an idle thread waits for what comes next: a GPU lane's for a batch, gRPC's for bytes
// (poll_spin.h). Waking a sleeping thread costs tens of microseconds, a good part of what a small
// batch takes; so while batches come in quick succession one idle thread of a device looks out for
// the next, for a bounded time, before it sleeps.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/time/time.h"

namespace fuseblock {

// Whether to look out for the next batch at all: when the last ones came within the time that a
// thread may spend on it. A server without traffic spends nothing; one whose traffic comes in
// larger steps, of several short waits and a long one, little. Not thread-safe.
class SpinPolicy {
 public:
  explicit SpinPolicy(absl::Duration spin_max) : spin_max_(spin_max), expected_(kCap * spin_max) {}

  absl::Duration spin_max() const { return spin_max_; }
  bool Worthwhile() const { return expected_ < spin_max_; }
  // There was nothing to do for so long.
  void Waited(absl::Duration waited) {
    expected_ += (std::min(waited, kCap * spin_max_) - expected_) / kRecent;
  }
  // Nothing came while the thread looked out.
  void Missed() { expected_ = kMissed * spin_max_; }

 private:
  static constexpr int64_t kCap = 4;      // one long pause is no more than the end of a burst
  static constexpr int64_t kRecent = 4;   // about so many waits decide
  static constexpr int64_t kMissed = 16;  // it takes some ten short waits to try again
  absl::Duration spin_max_, expected_;
};

// Several times what a remote caller that waits for each answer takes to send its next request,
// where there are cores to spare when a thread for each GPU and one of gRPC's look out. Zero on
// small machines, where those that spin would keep the caller from running, and without a GPU,
// where every core computes.
inline absl::Duration SpinMaxFor(int cores, int gpus) {
  return gpus > 0 && cores >= 2 * (gpus + 1) ? absl::Milliseconds(1) : absl::ZeroDuration();
}

// In a loop that looks out: leaves the core's other thread more of it.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks at `value` until it is no longer `seen`; false when the time is over.
inline bool SpinWhile(const std::atomic<uint32_t>& value, uint32_t seen, absl::Duration spin_max) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(spin_max);
  do {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != seen) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace fuseblock
