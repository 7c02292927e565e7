// The load generator. Calls are asynchronous: each answer's callback records it and sends the next
// request, so a few threads keep any number of requests in flight.
#include "client/cli/load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cli/dtype.h"

namespace fuseblock::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kRequests = 16;       // distinct ones, sent in turn
constexpr int64_t kNormals = 4093;  // distinct random values, repeated in a tensor; a prime
constexpr int kTimingsStride = 8;   // every so many requests ask for their phase times
constexpr auto kSlice = std::chrono::milliseconds(200);

std::vector<double> Normals(std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(kNormals);
  for (double& value : values) value = normal(random);
  return values;
}

// Inputs of that many tokens, of the values in turn. Drawing each anew would take seconds.
client::Request MakeRequest(const LoadPlan& plan, const v1::BlockInfo& block, int64_t tokens,
                            const std::vector<double>& values) {
  std::vector<std::string> storage;
  std::vector<client::Tensor> tensors;
  for (const v1::TensorSpec& spec : block.inputs()) {
    if (spec.optional() && !plan.residual) continue;
    client::Tensor tensor;
    tensor.name = spec.name();
    tensor.data_type = spec.data_types(0);
    tensor.shape = {tokens};
    if (spec.shape_size() > 1) tensor.shape.push_back(spec.shape(spec.shape_size() - 1));
    const bool ids =
        tensor.data_type == v1::DATA_TYPE_INT32 || tensor.data_type == v1::DATA_TYPE_INT64;
    const int64_t count =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    std::string data(static_cast<size_t>(count * Traits(tensor.data_type).size), '\0');
    auto* bytes = reinterpret_cast<std::byte*>(data.data());
    for (int64_t i = 0; i < count; ++i) {
      SetElement(tensor.data_type, bytes, i,
                 ids ? static_cast<double>(i % 2) : values[(i + tokens) % kNormals]);
    }
    storage.push_back(std::move(data));
    tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = client::Bytes(storage[i]);
  return client::Request(plan.block, tensors);
}

struct Sample {
  double end_s;  // from the measured start; negative in the warm-up
  double latency_us;
};

class Load {
 public:
  Load(const LoadPlan& plan, const v1::BlockInfo& block) : plan_(plan), client_(plan.server) {
    std::mt19937_64 random(1);
    const std::vector<double> values = Normals(random);
    std::uniform_int_distribution<int64_t> tokens(plan.tokens_min, plan.tokens_max);
    for (int i = 0; i < kRequests; ++i) {
      tokens_.push_back(tokens(random));
      requests_.push_back(MakeRequest(plan, block, tokens_.back(), values));
    }
  }

  LoadReport Run(const std::function<void(const Slice&)>& on_slice) {
    measured_from_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(plan_.warmup_s));
    ends_ = measured_from_ + std::chrono::duration_cast<Clock::duration>(Seconds(plan_.duration_s));
    std::thread pacer;
    if (plan_.rate > 0) {
      pacer = std::thread([this] { Pace(); });
    } else {
      for (int i = 0; i < plan_.concurrency; ++i) {
        {
          std::lock_guard lock(mutex_);
          ++in_flight_;
        }
        Send(Clock::now());
      }
    }
    for (auto at = Clock::now() + kSlice; at < ends_; at += kSlice) {
      std::this_thread::sleep_until(at);
      if (at > measured_from_) on_slice(LastSlice());
    }
    std::this_thread::sleep_until(ends_);
    if (pacer.joinable()) pacer.join();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return in_flight_ == 0; });
    return Report();
  }

 private:
  double MeasuredSeconds(Clock::time_point at) const {
    return Seconds(at - measured_from_).count();
  }

  // Sends requests when they are due, as long as fewer than `concurrency` are in flight.
  void Pace() {
    const auto start = Clock::now();
    for (int64_t i = 0;; ++i) {
      const auto due = start + std::chrono::duration_cast<Clock::duration>(
                                   Seconds(static_cast<double>(i) / plan_.rate));
      if (due >= ends_) return;
      std::this_thread::sleep_until(due);
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return in_flight_ < plan_.concurrency; });
        if (Clock::now() >= ends_) return;
        ++in_flight_;
      }
      Send(due);
    }
  }

  void Send(Clock::time_point due) {
    const int64_t number = next_++;
    const size_t which = static_cast<size_t>(number % kRequests);
    client::CallOptions options = plan_.call;
    options.timings = number % kTimingsStride == 0;
    client_.RunAsync(requests_[which], options,
                     [this, due, which](auto answer) { Done(due, tokens_[which], answer); });
  }

  void Done(Clock::time_point due, int64_t tokens, const absl::StatusOr<client::Answer>& answer) {
    const auto now = Clock::now();
    bool again = false;
    {
      std::lock_guard lock(mutex_);
      if (now >= measured_from_ && now < ends_) Record(due, now, tokens, answer);
      again = plan_.rate <= 0 && now < ends_;
      if (!again) --in_flight_;
      // Under the lock: the one who waits may destroy this object as soon as it sees the count.
      changed_.notify_all();
    }
    if (again) Send(now);
  }

  void Record(Clock::time_point due, Clock::time_point now, int64_t tokens,
              const absl::StatusOr<client::Answer>& answer) {
    if (!answer.ok()) {
      const client::Error error = client::ErrorOf(answer.status());
      ++errors_[error.reason.empty() ? absl::StatusCodeToString(error.code) : error.reason];
      return;
    }
    samples_.push_back(
        {MeasuredSeconds(now), std::chrono::duration<double, std::micro>(now - due).count()});
    answered_tokens_ += tokens;
    backend_ = answer->backend;
    for (const auto& [phase, us] : answer->timings_us) phases_[phase].push_back(us);
  }

  Slice LastSlice() {
    std::vector<double> latencies;
    double end = 0;
    {
      std::lock_guard lock(mutex_);
      end = MeasuredSeconds(Clock::now());
      for (size_t i = slice_begin_; i < samples_.size(); ++i) {
        latencies.push_back(samples_[i].latency_us);
      }
      slice_begin_ = samples_.size();
    }
    const double begin = slices_.empty() ? 0 : slices_.back().end_s;
    const double rate = static_cast<double>(latencies.size()) / std::max(end - begin, 1e-9);
    slices_.push_back({end, rate, Describe(std::move(latencies))});
    return slices_.back();
  }

  LoadReport Report() {
    LoadReport report;
    report.backend = backend_;
    report.seconds = plan_.duration_s;
    report.requests = static_cast<int64_t>(samples_.size());
    report.tokens = answered_tokens_;
    report.errors = errors_;
    for (const Sample& sample : samples_) report.latencies_us.push_back(sample.latency_us);
    std::sort(report.latencies_us.begin(), report.latencies_us.end());
    for (auto& [phase, samples] : phases_) report.phases_us[phase] = Describe(std::move(samples));
    report.slices = slices_;
    return report;
  }

  const LoadPlan& plan_;
  client::Client client_;
  std::vector<client::Request> requests_;
  std::vector<int64_t> tokens_;  // of each request
  Clock::time_point measured_from_, ends_;
  std::atomic<int64_t> next_ = 0;
  std::vector<Slice> slices_;  // the main thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  int in_flight_ = 0;
  size_t slice_begin_ = 0;
  std::vector<Sample> samples_;
  int64_t answered_tokens_ = 0;
  std::string backend_;
  std::map<std::string, int64_t> errors_;
  std::map<std::string, std::vector<double>> phases_;
};

}  // namespace

Distribution Describe(std::vector<double> samples) {
  Distribution out;
  out.count = static_cast<int64_t>(samples.size());
  if (samples.empty()) return out;
  std::sort(samples.begin(), samples.end());
  // The least sample that at least that share of the samples does not exceed.
  const auto at = [&samples](double share) {
    const auto rank = std::ceil(share * static_cast<double>(samples.size()));
    return samples[static_cast<size_t>(std::max(rank, 1.0)) - 1];
  };
  out.mean =
      std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
  out.p50 = at(0.5);
  out.p90 = at(0.9);
  out.p99 = at(0.99);
  out.p999 = at(0.999);
  out.max = samples.back();
  return out;
}

absl::StatusOr<LoadReport> RunLoad(const LoadPlan& plan,
                                   const std::function<void(const Slice&)>& on_slice) {
  const auto block = client::Client(plan.server).GetBlock(plan.block, "", plan.call);
  if (!block.ok()) return block.status();
  if (block->inputs().empty() || block->outputs().empty() ||
      block->outputs(0).data_types().empty()) {
    return absl::InternalError(absl::StrCat(plan.block, ": described without tensors"));
  }
  LoadReport report = Load(plan, *block).Run(on_slice);
  report.dtype = Traits(static_cast<v1::DataType>(block->outputs(0).data_types(0))).name;
  return report;
}

}  // namespace fuseblock::cli
