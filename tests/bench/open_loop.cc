// Requests that come whether or not earlier ones are answered, as those of many independent users
// do: an open loop at a fixed rate, each request with a deadline.
//
//   fuseblock_bench_open_loop SERVER BLOCK TOKENS COLUMNS DTYPE RATE SECONDS DEADLINE-MS CHANNELS
//
// DTYPE is fp32, fp16 or bf16, RATE is in requests a second. Prints one JSON object:
//   {"sent": n, "seconds": n, "late_us_p99": n, "cpu_seconds": n,
//    "answers": {"OK": {"count": n, "p50_us": n, "p99_us": n, "max_us": n},
//                "QUEUE_FULL": {...}, ...}}
// Answers go by the server's reason, or by the status code where the server gave none. late: how
// long after its time a request was sent; cpu_seconds: what this program took of the machine.
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

double Quantile(const std::vector<double>& sorted, double at) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(at * static_cast<double>(sorted.size())))];
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
    const Clock::time_point begin = Clock::now();
    const double cpu_before = CpuSeconds();
    const auto count = static_cast<int64_t>(rate * seconds);
    for (int64_t i = 0; i < count; ++i) {
      const Clock::time_point due =
          begin +
          std::chrono::nanoseconds(static_cast<int64_t>(1e9 * static_cast<double>(i) / rate));
      CollectUntil(due);
      late_us_.push_back(Us(Clock::now() - due));
      auto call = std::make_unique<RawCall>();
      call->context = std::make_unique<grpc::ClientContext>();
      call->context->set_deadline(std::chrono::system_clock::now() + deadline_);
      caller_.Start(request_, *call.release());
      ++in_flight_;
    }
    seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
    while (in_flight_ > 0) CollectOne(Clock::now() + std::chrono::seconds(1));
    cpu_seconds_ = CpuSeconds() - cpu_before;
  }

  void Print() {
    std::sort(late_us_.begin(), late_us_.end());
    std::printf("{\"sent\": %zu, \"seconds\": %.3f, \"late_us_p99\": %.1f, \"cpu_seconds\": %.3f, ",
                late_us_.size(), seconds_, Quantile(late_us_, 0.99), cpu_seconds_);
    std::printf("\"answers\": {");
    const char* separator = "";
    for (auto& [name, latencies] : latencies_us_) {
      std::sort(latencies.begin(), latencies.end());
      std::printf(
          "%s\"%s\": {\"count\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}",
          separator, name.c_str(), latencies.size(), Quantile(latencies, 0.5),
          Quantile(latencies, 0.99), latencies.back());
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
    latencies_us_[NameOf(call->status)].push_back(Us(Clock::now() - call->began));
    --in_flight_;
  }

  RawCaller& caller_;
  const grpc::ByteBuffer request_;
  const std::chrono::milliseconds deadline_;
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
