#include "tests/integration/server_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace fuseblock::testing {
namespace {

// Starts the server; its standard error, and with `output_too` its standard output, go to
// *pipe_end.
pid_t Spawn(std::vector<std::string> arguments, bool output_too, int* pipe_end) {
  arguments.insert(arguments.begin(), FUSEBLOCK_SERVER_BINARY);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDERR_FILENO);
    if (output_too) dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execv(argv[0], argv.data());
    std::perror(argv[0]);
    _exit(127);
  }
  close(ends[1]);
  *pipe_end = ends[0];
  return pid;
}

int ExitCode(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1 - WTERMSIG(status); }

}  // namespace

ServerProcess::ServerProcess(std::vector<std::string> arguments) {
  int pipe_end = -1;
  pid_ = Spawn(std::move(arguments), false, &pipe_end);
  reader_ = std::thread([this, pipe_end] { ReadLog(pipe_end); });
}

ServerProcess::~ServerProcess() {
  if (!waited_) {
    kill(pid_, SIGKILL);
    Wait();
  }
}

void ServerProcess::ReadLog(int pipe) {
  char buffer[4096];
  for (ssize_t count = 0; (count = read(pipe, buffer, sizeof(buffer))) > 0;) {
    std::lock_guard<std::mutex> lock(mutex_);
    log_.append(buffer, static_cast<size_t>(count));
    changed_.notify_all();
  }
  close(pipe);
  std::lock_guard<std::mutex> lock(mutex_);
  log_ended_ = true;
  changed_.notify_all();
}

std::string ServerProcess::AwaitLog(const std::string& text) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::string line;
  changed_.wait(lock, [&] {
    const size_t found = log_.find(text);
    if (found == std::string::npos) return log_ended_;
    const size_t begin = log_.rfind('\n', found) + 1;  // npos + 1 is 0
    const size_t end = log_.find('\n', found);
    if (end == std::string::npos) return log_ended_;
    line = log_.substr(begin, end - begin);
    return true;
  });
  return line;
}

std::string ServerProcess::Address(const std::string& service) {
  const std::string line = AwaitLog("service=" + service);
  const std::string before = "listening on ";
  const size_t begin = line.rfind(before);
  if (begin == std::string::npos) return "";
  const size_t address = begin + before.size();
  return line.substr(address, line.find(' ', address) - address);
}

void ServerProcess::Signal(int signal) const { kill(pid_, signal); }

int ServerProcess::Wait() {
  if (!waited_) {
    waitpid(pid_, &status_, 0);
    waited_ = true;
    reader_.join();
  }
  return ExitCode(status_);
}

std::string ServerProcess::log() {
  std::lock_guard<std::mutex> lock(mutex_);
  return log_;
}

Finished RunServer(std::vector<std::string> arguments) {
  int pipe_end = -1;
  const pid_t pid = Spawn(std::move(arguments), true, &pipe_end);
  Finished finished;
  char buffer[4096];
  for (ssize_t count = 0; (count = read(pipe_end, buffer, sizeof(buffer))) > 0;) {
    finished.output.append(buffer, static_cast<size_t>(count));
  }
  close(pipe_end);
  int status = 0;
  waitpid(pid, &status, 0);
  finished.exit_code = ExitCode(status);
  return finished;
}

std::string HttpGet(const std::string& address, const std::string& path, int* status) {
  *status = 0;
  const size_t colon = address.rfind(':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int socket_end = socket(AF_INET, SOCK_STREAM, 0);
  std::string answer;
  if (connect(socket_end, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n\r\n";
    if (write(socket_end, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t count = 0; (count = read(socket_end, buffer, sizeof(buffer))) > 0;) {
        answer.append(buffer, static_cast<size_t>(count));
      }
    }
  }
  close(socket_end);
  std::sscanf(answer.c_str(), "HTTP/%*s %d", status);
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

}  // namespace fuseblock::testing
