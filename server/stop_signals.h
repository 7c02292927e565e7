// SIGTERM and SIGINT as an ordered stop: the first asks for it, a second one ends the process at
// once.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace fuseblock {

// Make one before any other thread: threads inherit the signals that it blocks. Thread-safe.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // As if a first signal had come.
  void RequestStop();
  bool stopping() const;
  // Returns when a stop is asked for.
  void Wait() const;

 private:
  void Listen();

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fuseblock
