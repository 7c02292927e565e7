// A load generator: sends requests to one block for a while and measures every answer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"

namespace fuseblock::cli {

struct LoadPlan {
  std::string server;
  std::string block;
  int64_t tokens_min = 1, tokens_max = 1;  // each request's tokens are drawn evenly between them
  int concurrency = 1;                     // requests in flight, at most
  double duration_s = 5;
  double warmup_s = 0.5;  // before it, not measured
  double rate = 0;        // requests per second; 0: as fast as answers come
  bool residual = false;  // send the block's optional inputs too
  client::CallOptions call;
};

// The latencies of one phase or of whole requests, in microseconds.
struct Distribution {
  int64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, p999 = 0, max = 0;
};
Distribution Describe(std::vector<double> samples);

// What happened in one slice of the run.
struct Slice {
  double end_s = 0;  // from the measured start
  double requests_per_s = 0;
  Distribution latency_us;
};

struct LoadReport {
  std::string dtype, backend;
  double seconds = 0;
  int64_t requests = 0;                           // answered well
  int64_t tokens = 0;                             // in those
  std::map<std::string, int64_t> errors;          // by reason, or code where there is none
  std::vector<double> latencies_us;               // of requests answered well, sorted
  std::map<std::string, Distribution> phases_us;  // of a sample of the requests
  std::vector<Slice> slices;

  double RequestsPerSecond() const { return seconds > 0 ? requests / seconds : 0; }
  double TokensPerSecond() const { return seconds > 0 ? tokens / seconds : 0; }
};

// Runs the plan; on_slice is called about five times a second, for progress. With a rate, latency
// counts from when a request was due, so that a slow server can't hide its queue by being asked
// less. Errors: what GetBlock says of the block.
absl::StatusOr<LoadReport> RunLoad(const LoadPlan& plan,
                                   const std::function<void(const Slice&)>& on_slice);

}  // namespace fuseblock::cli
