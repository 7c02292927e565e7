// SIGTERM and SIGINT as an ordered stop: the first asks for it, a second one ends the process at
// once.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

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

  mutable std::mutex mutex_;
  mutable std::condition_variable stopped_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace fuseblock
