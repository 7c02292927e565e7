// Requests that come whether or not earlier ones are answered, as those of many independent users
// do: an open loop at a fixed rate, each request with a deadline.
//
//   fuseblock_bench_open_loop SERVER BLOCK TOKENS COLUMNS DTYPE RATE SECONDS DEADLINE-MS CHANNELS
//
// DTYPE is fp32, fp16 or bf16, RATE is in requests a second. Prints one JSON object:
//   {"sent": n, "seconds": n, "answered_seconds": n, "late_us_p99": n, "cpu_seconds": n,
//    "answers_us": {"OK": [n, ...], "QUEUE_FULL": [...], ...}}
// Answers go by the server's reason, or by the status code where the server gave none, each with
// its latency. late: how long after its time a request was sent; seconds: those of sending, and
// answered_seconds until the last OK, when the server had done what it took in; cpu_seconds: what
// this program took of the machine.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/encoded.h"
#include "tests/bench/raw_calls.h"

namespace fuseblock::testing {
namespace {

using Clock = std::chrono::steady_clock;

double Us(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

std::string NameOf(const grpc::Status& status) {
  if (status.ok()) return "OK";
  const absl::Status error = client::ErrorFrom(status);
  const std::string reason = client::ErrorOf(error).reason;
  return reason.empty() ? absl::StatusCodeToString(error.code()) : reason;
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class OpenLoop {
 public:
  OpenLoop(RawCaller& caller, const grpc::ByteBuffer& request, std::chrono::milliseconds deadline)
      : caller_(caller), request_(request), deadline_(deadline) {}

  void Run(double rate, double seconds) {
    begin_ = Clock::now();
    last_ok_ = begin_;
    const double cpu_before = CpuSeconds();
    const auto count = static_cast<int64_t>(rate * seconds);
    for (int64_t i = 0; i < count; ++i) {
      const Clock::time_point due =
          begin_ +
          std::chrono::nanoseconds(static_cast<int64_t>(1e9 * static_cast<double>(i) / rate));
      CollectUntil(due);
      late_us_.push_back(Us(Clock::now() - due));
      auto call = std::make_unique<RawCall>();
      call->context = std::make_unique<grpc::ClientContext>();
      call->context->set_deadline(std::chrono::system_clock::now() + deadline_);
      caller_.Start(request_, *call.release());
      ++in_flight_;
    }
    seconds_ = Us(Clock::now() - begin_) * 1e-6;
    while (in_flight_ > 0) CollectOne(Clock::now() + std::chrono::seconds(1));
    cpu_seconds_ = CpuSeconds() - cpu_before;
  }

  void Print() {
    std::sort(late_us_.begin(), late_us_.end());
    const double late = late_us_.empty() ? 0 : late_us_[late_us_.size() * 99 / 100];
    std::printf(
        "{\"sent\": %zu, \"seconds\": %.3f, \"answered_seconds\": %.3f, \"late_us_p99\": %.1f, "
        "\"cpu_seconds\": %.3f, \"answers_us\": {",
        late_us_.size(), seconds_, Us(last_ok_ - begin_) * 1e-6, late, cpu_seconds_);
    const char* separator = "";
    for (const auto& [name, latencies] : latencies_us_) {
      std::printf("%s\"%s\": [", separator, name.c_str());
      for (size_t i = 0; i < latencies.size(); ++i) {
        std::printf("%s%.0f", i > 0 ? ", " : "", latencies[i]);
      }
      std::printf("]");
      separator = ", ";
    }
    std::printf("}}\n");
  }

 private:
  void CollectUntil(Clock::time_point due) {
    while (Clock::now() < due) CollectOne(due);
  }
  // Takes one answer, if one comes before that time.
  void CollectOne(Clock::time_point until) {
    void* tag = nullptr;
    bool ok = false;
    const auto wait = until - Clock::now();
    if (caller_.queue().AsyncNext(&tag, &ok, std::chrono::system_clock::now() + wait) !=
        grpc::CompletionQueue::GOT_EVENT) {
      return;
    }
    const std::unique_ptr<RawCall> call(static_cast<RawCall*>(tag));
    const Clock::time_point now = Clock::now();
    if (call->status.ok()) last_ok_ = now;
    latencies_us_[NameOf(call->status)].push_back(Us(now - call->began));
    --in_flight_;
  }

  RawCaller& caller_;
  const grpc::ByteBuffer request_;
  const std::chrono::milliseconds deadline_;
  Clock::time_point begin_, last_ok_;
  int64_t in_flight_ = 0;
  double seconds_ = 0, cpu_seconds_ = 0;
  std::vector<double> late_us_;
  std::map<std::string, std::vector<double>> latencies_us_;
};

int Main(char** arguments) {
  const int64_t tokens = std::atoll(arguments[2]), columns = std::atoll(arguments[3]);
  const double rate = std::atof(arguments[5]), seconds = std::atof(arguments[6]);
  RawCaller caller(arguments[0], std::max(1, std::atoi(arguments[8])));
  if (!caller.connected()) {
    std::fprintf(stderr, "%s: does not answer\n", arguments[0]);
    return 1;
  }
  OpenLoop loop(caller, MadeUpRequest(arguments[1], tokens, columns, arguments[4]),
                std::chrono::milliseconds(std::atoll(arguments[7])));
  loop.Run(rate, seconds);
  loop.Print();
  return 0;
}

}  // namespace
}  // namespace fuseblock::testing

int main(int argc, char** argv) {
  if (argc == 10) return fuseblock::testing::Main(argv + 1);
  std::fprintf(stderr,
               "usage: fuseblock_bench_open_loop SERVER BLOCK TOKENS COLUMNS DTYPE RATE SECONDS "
               "DEADLINE-MS CHANNELS\n");
  return 2;
}
