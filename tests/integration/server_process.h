// fuseblock-server as a child process: started, asked through its log for its addresses, signalled,
// and waited for. A child that a test forgets is killed.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fuseblock::testing {

class ServerProcess {
 public:
  // Starts it with these arguments; standard error is read as its log.
  explicit ServerProcess(std::vector<std::string> arguments);
  ~ServerProcess();

  // Waits until the log has a line with this text and gives the line; empty when the process ended
  // without one.
  std::string AwaitLog(const std::string& text);
  // The address after "listening on" of that service: "grpc" or "metrics".
  std::string Address(const std::string& service);
  void Signal(int signal) const;
  // Waits for its end. The exit code, or -1 - signal when a signal ended it.
  int Wait();
  std::string log();

 private:
  void ReadLog(int pipe);

  pid_t pid_ = -1;
  int status_ = 0;
  bool waited_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string log_;
  bool log_ended_ = false;
  std::thread reader_;
};

// Runs it to its end with standard output and error together.
struct Finished {
  int exit_code = 0;
  std::string output;
};
Finished RunServer(std::vector<std::string> arguments);

// The body of a plain HTTP GET; `status` is the code.
std::string HttpGet(const std::string& address, const std::string& path, int* status);

}  // namespace fuseblock::testing
