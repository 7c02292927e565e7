// Who answers for what a lane is running: its worker, unless the lane took too long and the engine
// gave it up. Whoever asks first has it, so that a batch is answered once, however late the lane
// comes back.
#pragma once

#include <mutex>

#include "absl/time/time.h"

namespace fuseblock {

// Thread-safe.
class Flight {
 public:
  enum class Owner {
    kWorker,
    kEngine,  // the lane was given up
    kNobody,  // and the engine is gone, too
  };

  // By the worker, around the lane's run.
  void Begin(absl::Time overdue_at) {
    std::lock_guard<std::mutex> lock(mutex_);
    flying_ = true;
    overdue_at_ = overdue_at;
  }
  // Anything but kWorker: what was run is no longer the worker's.
  Owner End() {
    std::lock_guard<std::mutex> lock(mutex_);
    const Owner owner = owner_;
    if (owner != Owner::kNobody) owner_ = Owner::kWorker;
    flying_ = false;
    return owner;
  }

  // When the engine may give it up; InfiniteFuture while nothing runs, or after it was given up.
  absl::Time overdue_at() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return flying_ && owner_ == Owner::kWorker ? overdue_at_ : absl::InfiniteFuture();
  }
  // By the engine. True when the lane is running and overdue: from now on it is given up.
  bool GiveUp(absl::Time now) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!flying_ || owner_ != Owner::kWorker || now < overdue_at_) return false;
    owner_ = Owner::kEngine;
    return true;
  }
  bool given_up() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return owner_ == Owner::kEngine;
  }
  // The engine goes, and does not wait for the lane. False when it has come back meanwhile.
  bool Orphan() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (owner_ != Owner::kEngine) return false;
    owner_ = Owner::kNobody;
    return true;
  }

 private:
  mutable std::mutex mutex_;
  bool flying_ = false;
  Owner owner_ = Owner::kWorker;
  absl::Time overdue_at_;
};

}  // namespace fuseblock
