// What a request costs beside the bare transport: the same request to the server and to the echo
// (echo.cc), by the same client, in turns.
//
//   fuseblock_bench_rpc ECHO SERVER BLOCK TOKENS COLUMNS DTYPE IN-FLIGHT CHANNELS ROUNDS SECONDS
//
// The first two are addresses, DTYPE is fp32, fp16 or bf16, SECONDS are those of one turn. Prints
// one JSON object:
//   {"payload_bytes": n,
//    "echo":   {"p50_us": [...], "p99_us": [...], "requests_per_s": [...], "requests": n,
//               "bins_us": [...], "calls": [...]},
//    "server": {... the same ...}, "phases_us_p50": {"queue": n, ...}}
// The first lists have one number for each round; "calls" counts those whose latency came up to the
// bin of the same place. Phases are medians over calls that asked for them.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/bench/raw_calls.h"

namespace fuseblock::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kWarmupSeconds = 0.3;
constexpr int kTimedCalls = 200;
// Neighbouring bins of a histogram differ by this factor.
constexpr double kBinFactor = 1.05;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "fuseblock_bench_rpc: %s\n", what.c_str());
  std::exit(1);
}

struct Contender {
  Contender(const char* name_in, const std::string& address, int channels)
      : name(name_in), caller(address, channels) {
    if (!caller.connected()) Die(address + ": does not answer");
  }

  const char* name;
  RawCaller caller;
  std::vector<double> p50_us, p99_us, requests_per_s;
  std::map<int, int64_t> bins;
  int64_t requests = 0;
};

// A closed loop: each answer is followed by the next request. Returns the latencies, in us.
std::vector<double> Turn(Contender& to, const grpc::ByteBuffer& request, int in_flight,
                         double seconds, double* took) {
  std::vector<RawCall> calls(static_cast<size_t>(in_flight));
  std::vector<double> latencies;
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = begin + std::chrono::nanoseconds(int64_t(seconds * 1e9));
  for (RawCall& call : calls) to.caller.Start(request, call);
  int running = in_flight;
  void* tag = nullptr;
  for (bool ok = false; running > 0 && to.caller.queue().Next(&tag, &ok);) {
    RawCall& call = *static_cast<RawCall*>(tag);
    if (!call.status.ok()) Die(std::string(to.name) + ": " + call.status.error_message());
    const Clock::time_point now = Clock::now();
    latencies.push_back(std::chrono::duration<double, std::micro>(now - call.began).count());
    call.context.reset();
    if (now < end) {
      to.caller.Start(request, call);
    } else {
      --running;
    }
  }
  *took = std::chrono::duration<double>(Clock::now() - begin).count();
  return latencies;
}

void Measure(Contender& to, const grpc::ByteBuffer& request, int in_flight, double seconds) {
  double took = 0;
  std::vector<double> latencies = Turn(to, request, in_flight, seconds, &took);
  std::sort(latencies.begin(), latencies.end());
  to.requests += static_cast<int64_t>(latencies.size());
  to.requests_per_s.push_back(static_cast<double>(latencies.size()) / took);
  to.p50_us.push_back(latencies[latencies.size() / 2]);
  to.p99_us.push_back(latencies[latencies.size() * 99 / 100]);
  for (const double us : latencies) {
    ++to.bins[static_cast<int>(std::ceil(std::log(std::max(us, 1.0)) / std::log(kBinFactor)))];
  }
}

using PhaseTimes = std::map<std::string, std::vector<double>>;

// "queue=1.5,batch=0.2": added to what there is.
void AddTimings(const RawCall& call, PhaseTimes* times) {
  const auto& trailers = call.context->GetServerTrailingMetadata();
  const auto found = trailers.find("fuseblock-timings");
  if (!call.status.ok() || found == trailers.end()) Die("the server sent no timings");
  std::string text(found->second.data(), found->second.size());
  for (char* part = std::strtok(text.data(), ","); part; part = std::strtok(nullptr, ",")) {
    char* equals = std::strchr(part, '=');
    if (equals != nullptr) (*times)[std::string(part, equals)].push_back(std::atof(equals + 1));
  }
}

// With that many in flight, as the load before it.
PhaseTimes Phases(RawCaller& caller, const grpc::ByteBuffer& request, int in_flight) {
  std::vector<RawCall> calls(static_cast<size_t>(in_flight));
  int started = 0;
  const auto start = [&](RawCall& call) {
    call.context = std::make_unique<grpc::ClientContext>();
    call.context->AddMetadata("fuseblock-timings", "1");
    caller.Start(request, call);
    ++started;
  };
  for (RawCall& call : calls) start(call);
  PhaseTimes times;
  void* tag = nullptr;
  bool ok = false;
  for (int ended = 0; ended < started && caller.queue().Next(&tag, &ok); ++ended) {
    RawCall& call = *static_cast<RawCall*>(tag);
    AddTimings(call, &times);
    if (started < kTimedCalls) start(call);
  }
  return times;
}

void PrintList(const char* name, const std::vector<double>& values) {
  std::printf("\"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.1f", i ? ", " : "", values[i]);
  std::printf("], ");
}

void Print(const Contender& of) {
  std::printf("\"%s\": {", of.name);
  PrintList("p50_us", of.p50_us);
  PrintList("p99_us", of.p99_us);
  PrintList("requests_per_s", of.requests_per_s);
  std::vector<double> bins_us, calls;
  for (const auto& [bin, count] : of.bins) {
    bins_us.push_back(std::pow(kBinFactor, bin));
    calls.push_back(static_cast<double>(count));
  }
  PrintList("bins_us", bins_us);
  PrintList("calls", calls);
  std::printf("\"requests\": %lld}, ", static_cast<long long>(of.requests));
}

int Main(char** arguments) {
  const std::string block = arguments[2], dtype = arguments[5];
  const int64_t tokens = std::atoll(arguments[3]), columns = std::atoll(arguments[4]);
  const int in_flight = std::atoi(arguments[6]), channels = std::atoi(arguments[7]);
  const int rounds = std::atoi(arguments[8]);
  const double seconds = std::atof(arguments[9]);
  if (tokens < 1 || columns < 1 || in_flight < 1 || channels < 1 || rounds < 1) {
    Die("expected numbers above 0");
  }
  const grpc::ByteBuffer request = MadeUpRequest(block, tokens, columns, dtype);

  Contender echo("echo", arguments[0], channels), server("server", arguments[1], channels);
  double unused = 0;
  for (Contender* each : {&echo, &server}) {
    (void)Turn(*each, request, in_flight, kWarmupSeconds, &unused);
  }
  for (int round = 0; round < rounds; ++round) {
    // Whoever goes second may find the caches and the clock as the first left them.
    std::array<Contender*, 2> order{&echo, &server};
    if (round % 2 == 1) std::swap(order[0], order[1]);
    for (Contender* each : order) Measure(*each, request, in_flight, seconds);
  }
  std::printf("{\"payload_bytes\": %zu, ",
              static_cast<size_t>(tokens * columns) * ElementBytes(dtype));
  Print(echo);
  Print(server);
  std::printf("\"phases_us_p50\": {");
  const char* separator = "";
  PhaseTimes phases = Phases(server.caller, request, in_flight);
  for (auto& [phase, us] : phases) {
    std::nth_element(us.begin(), us.begin() + static_cast<ptrdiff_t>(us.size() / 2), us.end());
    std::printf("%s\"%s\": %.1f", separator, phase.c_str(), us[us.size() / 2]);
    separator = ", ";
  }
  std::printf("}}\n");
  return 0;
}

}  // namespace
}  // namespace fuseblock::testing

int main(int argc, char** argv) {
  if (argc == 11) return fuseblock::testing::Main(argv + 1);
  std::fprintf(stderr,
               "usage: fuseblock_bench_rpc ECHO SERVER BLOCK TOKENS COLUMNS DTYPE IN-FLIGHT "
               "CHANNELS ROUNDS SECONDS\n");
  return 2;
}
