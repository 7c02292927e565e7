#include "server/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <string_view>

#include "server/observe/log.h"

namespace fuseblock {
namespace {

constexpr int kWake = SIGUSR1;  // ends the listening thread

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, kWake}) sigaddset(&set, signal);
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([this] { Listen(); });
}

StopSignals::~StopSignals() {
  pthread_kill(thread_.native_handle(), kWake);
  thread_.join();
}

void StopSignals::Listen() {
  const sigset_t set = Signals();
  bool stopped = false;
  for (int signal = 0; sigwait(&set, &signal) == 0 && signal != kWake;) {
    if (signal == SIGHUP) {
      Log(LogLevel::kInfo, "reload", "SIGHUP: there are no certificates or tokens to reload");
      continue;
    }
    const std::string_view name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
    if (stopped) {
      Log(LogLevel::kWarning, "stopped", "a second signal: stopping at once", {{"signal", name}});
      _exit(1);
    }
    stopped = true;
    Log(LogLevel::kInfo, "stopping", "a signal: draining", {{"signal", name}});
    RequestStop();
  }
}

void StopSignals::RequestStop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
  stopped_.notify_all();
}

bool StopSignals::stopping() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stopping_;
}

void StopSignals::Wait() const {
  std::unique_lock<std::mutex> lock(mutex_);
  stopped_.wait(lock, [this] { return stopping_; });
}

}  // namespace fuseblock
