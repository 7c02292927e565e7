// Tells gRPC's own threads from the user's.
#pragma once

namespace fuseblock::client {

// While one lives, this thread is gRPC's and runs a callback of the user's.
class CallbackScope {
 public:
  CallbackScope() : outer_(active_) { active_ = true; }
  ~CallbackScope() { active_ = outer_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  static bool Active() { return active_; }

 private:
  static inline thread_local bool active_ = false;
  const bool outer_;
};

}  // namespace fuseblock::client
