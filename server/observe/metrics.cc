// The series behind metrics.h. Series of a block are made on first use and then reached by one
// atomic load; those that alerts watch from zero (sheds, answered requests) are made with the
// block.
#include "server/observe/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/observe/gpu_usage.h"

namespace fuseblock {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using Buckets = Histogram::BucketBoundaries;

constexpr int kCodes = 17;  // the canonical gRPC codes
constexpr int kReasons = static_cast<int>(Reason::kInternal) + 1;

constexpr std::string_view kRpcNames[kRpcs] = {"RunBlock", "StreamBlocks"};
constexpr std::string_view kPhaseNames[kPhases] = {"queue",   "batch", "h2d",
                                                   "compute", "d2h",   "encode"};
constexpr std::string_view kFallbackNames[kFallbackCauses] = {"device_lost", "launch_failed",
                                                              "out_of_memory", "hung"};
constexpr const char* kShadowNames[kShadowResults] = {"equal", "different", "failed", "skipped"};
constexpr const char* kPoolNames[kMemoryPools] = {"staging_in", "staging_out", "workspace",
                                                  "graphs", "requests"};
constexpr const char* kCodeNames[kCodes] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// 10 us to 10 s, three buckets a decade.
const Buckets& Seconds() {
  static const Buckets* buckets =
      new Buckets{1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
                  2e-2, 5e-2, 0.1,  0.2,  0.5,  1,    2,    5,    10};
  return *buckets;
}

// Powers of four: the sizes range over seven decades.
Buckets PowersOfFour(double first, int count) {
  Buckets buckets;
  for (int i = 0; i < count; ++i, first *= 4) buckets.push_back(first);
  return buckets;
}

Buckets PowersOfTwo(int count) {
  Buckets buckets;
  double value = 1;
  for (int i = 0; i < count; ++i, value *= 2) buckets.push_back(value);
  return buckets;
}

// 0, then 1 to 65536: beyond that, or with a NaN on one side, nothing is close.
const Buckets& UlpBuckets() {
  static const Buckets* buckets = [] {
    auto* all = new Buckets(PowersOfTwo(17));
    all->insert(all->begin(), 0);
    return all;
  }();
  return *buckets;
}

double ToSeconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

// Made by `make` when it is first asked for. Two threads that race both get the same series,
// because a family answers equal labels with the same one.
template <typename T>
class Lazy {
 public:
  template <typename Make>
  T& Get(Make&& make) {
    T* series = series_.load(std::memory_order_acquire);
    if (series == nullptr) {
      series = &make();
      series_.store(series, std::memory_order_release);
    }
    return *series;
  }
  // Null while nobody has asked for it.
  T* Peek() const { return series_.load(std::memory_order_acquire); }

 private:
  std::atomic<T*> series_{nullptr};
};

std::string Text(std::string_view text) { return std::string(text); }

Labels LabelsOf(Device device, FallbackCause cause) {
  return {{"device", DeviceName(device)}, {"cause", Text(Name(cause))}};
}

}  // namespace

std::string_view Name(Rpc rpc) { return kRpcNames[static_cast<int>(rpc)]; }
std::string_view Name(Phase phase) { return kPhaseNames[static_cast<int>(phase)]; }
std::string_view Name(FallbackCause cause) { return kFallbackNames[static_cast<int>(cause)]; }

struct Metrics::Impl {
  prometheus::Registry registry;
  Family<Counter>& requests = Counters("requests_total", "Requests answered, by canonical code.");
  Family<Histogram>& request_duration =
      Histograms("request_duration_seconds", "From a request's arrival to its answer.");
  Family<Histogram>& phase_duration =
      Histograms("phase_duration_seconds", "Time that requests spent in each phase.");
  Family<Counter>& shed = Counters("shed_total", "Requests refused for load, by cause.");
  Family<Counter>& fallback =
      Counters("fallback_total", "Requests that another device than the preferred one answered.");
  Family<Counter>& useful_tokens =
      Counters("useful_tokens_total", "Tokens that blocks were run on.");
  Family<Counter>& padded_tokens =
      Counters("padded_tokens_total", "Tokens added to batches to fill them up.");
  Family<Counter>& shadow =
      Counters("shadow_total", "Requests run again to compare the outputs, by what came of it.");
  Family<Histogram>& shadow_difference =
      Histograms("shadow_difference_ulp", "Largest difference of a compared request's outputs.");
  Family<Counter>& lane_batches = Counters("lane_batches_total", "Batches that the lane answered.");
  Family<Counter>& lane_busy =
      Counters("lane_busy_seconds_total", "Time that the lane spent on batches.");
  Family<Gauge>& weights = Gauges("weights_bytes", "Weights held, by block and device.");
  Family<Counter>& errors = Counters("errors_total", "Failed requests, by reason.");
  Family<Gauge>& memory =
      Gauges("memory_bytes", "The engine's pools: bytes reserved, and of these in use.");
  Family<Gauge>& device_healthy = Gauges("device_healthy", "1: takes work, 0: quarantined.");
  Family<Counter>& quarantines = Counters(
      "device_quarantines_total", "Times that a device was taken out of service, by cause.");
  Family<Counter>& recoveries = Counters(
      "device_recoveries_total", "Times that a probe brought a device back, by what it had had.");
  Family<Gauge>& build_info = Gauges("build_info", "Always 1; the labels name the build.");

  Family<Gauge>& gpu_utilization = Gauges(
      "gpu_utilization_ratio", "Share of time in which kernels ran, as nvidia-smi counts GPUs.");
  Family<Gauge>& gpu_memory_used =
      Gauges("gpu_memory_used_bytes", "Memory in use on the GPU, by all processes.");
  Family<Gauge>& gpu_memory = Gauges("gpu_memory_size_bytes", "Memory that the GPU has.");

  Histogram& batch_tokens =
      Histograms("batch_tokens", "Tokens in a batch.").Add({}, PowersOfTwo(15));
  Histogram& batch_requests =
      Histograms("batch_requests", "Requests in a batch.").Add({}, PowersOfTwo(11));
  Histogram& request_bytes =
      Histograms("request_bytes", "Size of request messages.").Add({}, PowersOfFour(256, 11));
  Histogram& response_bytes =
      Histograms("response_bytes", "Size of answers.").Add({}, PowersOfFour(256, 11));
  Gauge& queue_tokens = Gauges("queue_tokens", "Tokens of queued requests.").Add({});
  Gauge& queue_bytes = Gauges("queue_bytes", "Bytes of queued requests.").Add({});
  Gauge& inflight = Gauges("inflight_requests", "Requests admitted and not yet released.").Add({});

  std::array<Counter*, kReasons> errors_by_reason;
  std::mutex mutex;  // guards what follows
  GpuUsage gpus;
  std::map<std::string, std::unique_ptr<BlockMetrics>, std::less<>> blocks;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<MemoryGauge>> pools;
  std::map<std::pair<std::string, int>, std::unique_ptr<LaneMetrics>> lanes;

  explicit Impl(const char* nvml_library) : gpus(nvml_library) {
    for (const ReasonTraits& traits : AllReasons()) {
      errors_by_reason[static_cast<int>(traits.reason)] =
          &errors.Add({{"category", Text(traits.cause)}});
    }
  }

  Family<Counter>& Counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(Prefixed(name)).Help(help).Register(registry);
  }
  Family<Gauge>& Gauges(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(Prefixed(name)).Help(help).Register(registry);
  }
  Family<Histogram>& Histograms(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(Prefixed(name)).Help(help).Register(registry);
  }
  void ReadGpus() {
    std::lock_guard<std::mutex> lock(mutex);
    for (const GpuSample& sample : gpus.Read()) {
      const Labels labels{{"gpu", std::to_string(sample.index)}};
      gpu_utilization.Add(labels).Set(sample.utilization);
      gpu_memory_used.Add(labels).Set(static_cast<double>(sample.memory_used));
      gpu_memory.Add(labels).Set(static_cast<double>(sample.memory_total));
    }
  }
  static std::string Prefixed(const char* name) { return absl::StrCat("fuseblock_", name); }
};

struct BlockMetrics::Impl {
  Impl(Metrics::Impl& all_in, std::string name) : all(all_in), block(std::move(name)) {
    useful = &all.useful_tokens.Add({{"block", block}});
    padded = &all.padded_tokens.Add({{"block", block}});
    for (const ReasonTraits& traits : AllReasons()) {
      if (!traits.shed) continue;
      shed[static_cast<int>(traits.reason)] =
          &all.shed.Add({{"block", block}, {"cause", Text(traits.cause)}});
    }
    Request(Rpc::kRunBlock, 0);
  }

  Counter& Request(Rpc rpc, int code) {
    return requests[static_cast<int>(rpc)][code].Get([&]() -> Counter& {
      return all.requests.Add(
          {{"block", block}, {"rpc", Text(Name(rpc))}, {"code", kCodeNames[code]}});
    });
  }

  Metrics::Impl& all;
  const std::string block;
  Lazy<Counter> requests[kRpcs][kCodes];
  Lazy<Histogram> durations[kRpcs];
  Lazy<Histogram> phases[kPhases];
  Lazy<Counter> fallback[kFallbackCauses];
  Lazy<Counter> shadow[kShadowResults];
  Lazy<Histogram> shadow_difference;
  std::array<Counter*, kReasons> shed{};
  Counter* useful;
  Counter* padded;
};

BlockMetrics::BlockMetrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BlockMetrics::~BlockMetrics() = default;

void BlockMetrics::ObserveRequest(Rpc rpc, const absl::Status& status, absl::Duration whole) {
  const int code = static_cast<int>(status.code());
  impl_->Request(rpc, code >= 0 && code < kCodes ? code : 2).Increment();
  impl_->durations[static_cast<int>(rpc)]
      .Get([&]() -> Histogram& {
        return impl_->all.request_duration.Add({{"block", impl_->block}, {"rpc", Text(Name(rpc))}},
                                               Seconds());
      })
      .Observe(ToSeconds(whole));
  if (!status.ok()) {
    impl_->all.errors_by_reason[static_cast<int>(ReasonOf(status))]->Increment();
  }
}

void BlockMetrics::ObserveBytes(int64_t request, int64_t response) {
  impl_->all.request_bytes.Observe(static_cast<double>(request));
  impl_->all.response_bytes.Observe(static_cast<double>(response));
}

void BlockMetrics::ObservePhase(Phase phase, absl::Duration duration) {
  impl_->phases[static_cast<int>(phase)]
      .Get([&]() -> Histogram& {
        return impl_->all.phase_duration.Add(
            {{"block", impl_->block}, {"phase", Text(Name(phase))}}, Seconds());
      })
      .Observe(ToSeconds(duration));
}

void BlockMetrics::CountShed(Reason reason) {
  if (Counter* counter = impl_->shed[static_cast<int>(reason)]) counter->Increment();
}

void BlockMetrics::CountFallback(FallbackCause cause, int64_t requests) {
  const int index = static_cast<int>(cause);
  impl_->fallback[index]
      .Get([&]() -> Counter& {
        return impl_->all.fallback.Add({{"block", impl_->block}, {"cause", Text(Name(cause))}});
      })
      .Increment(static_cast<double>(requests));
}

void BlockMetrics::CountShadow(ShadowResult result) {
  const int index = static_cast<int>(result);
  impl_->shadow[index]
      .Get([&]() -> Counter& {
        return impl_->all.shadow.Add({{"block", impl_->block}, {"result", kShadowNames[index]}});
      })
      .Increment();
}

void BlockMetrics::ObserveShadow(double ulp) {
  CountShadow(ulp < 0 ? ShadowResult::kEqual : ShadowResult::kDifferent);
  impl_->shadow_difference
      .Get([&]() -> Histogram& {
        return impl_->all.shadow_difference.Add({{"block", impl_->block}}, UlpBuckets());
      })
      .Observe(ulp < 0 ? 0 : ulp);
}

BlockMetrics::Totals BlockMetrics::RequestTotals() const {
  Totals totals;
  for (auto& rpc : impl_->requests) {
    for (int code = 0; code < kCodes; ++code) {
      const Counter* counter = rpc[code].Peek();
      if (counter == nullptr) continue;
      const auto count = static_cast<int64_t>(counter->Value());
      totals.requests += count;
      if (code != 0) totals.errors += count;
    }
  }
  return totals;
}

void BlockMetrics::ObserveBatch(int64_t requests, int64_t tokens, int64_t padded_tokens) {
  impl_->all.batch_requests.Observe(static_cast<double>(requests));
  impl_->all.batch_tokens.Observe(static_cast<double>(tokens));
  impl_->useful->Increment(static_cast<double>(tokens));
  impl_->padded->Increment(static_cast<double>(padded_tokens));
}

void BlockMetrics::AddWeightBytes(Device device, int64_t delta) {
  impl_->all.weights.Add({{"block", impl_->block}, {"device", DeviceName(device)}})
      .Increment(static_cast<double>(delta));
}

struct LaneMetrics::Impl {
  Counter& batches;
  Counter& busy;
};

LaneMetrics::LaneMetrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LaneMetrics::~LaneMetrics() = default;
void LaneMetrics::ObserveBatch(absl::Duration busy) {
  impl_->batches.Increment();
  impl_->busy.Increment(ToSeconds(busy));
}

// Counted in integers, which takes one addition where a gauge's number takes a loop, and given to
// the gauges when somebody reads them.
struct MemoryGauge::Impl {
  Impl(Gauge& reserved_in, Gauge& used_in) : reserved(reserved_in), used(used_in) {}
  void Publish() {
    reserved.Set(static_cast<double>(reserved_bytes.load(std::memory_order_relaxed)));
    used.Set(static_cast<double>(used_bytes.load(std::memory_order_relaxed)));
  }

  Gauge& reserved;
  Gauge& used;
  std::atomic<int64_t> reserved_bytes{0};
  std::atomic<int64_t> used_bytes{0};
};

MemoryGauge::MemoryGauge(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MemoryGauge::~MemoryGauge() = default;
void MemoryGauge::AddReserved(int64_t delta) {
  impl_->reserved_bytes.fetch_add(delta, std::memory_order_relaxed);
}
void MemoryGauge::AddUsed(int64_t delta) {
  impl_->used_bytes.fetch_add(delta, std::memory_order_relaxed);
}
void MemoryGauge::Publish() { impl_->Publish(); }

Metrics::Metrics(const char* nvml_library) : impl_(std::make_unique<Impl>(nvml_library)) {}
Metrics::~Metrics() = default;

void Metrics::SetBuildInfo(const BuildInfo& info) {
  impl_->build_info
      .Add({{"version", info.version},
            {"commit", info.commit},
            {"cuda", info.cuda},
            {"isa", info.isa}})
      .Set(1);
}

BlockMetrics* Metrics::Block(std::string_view name) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  auto found = impl_->blocks.find(name);
  if (found == impl_->blocks.end()) {
    auto series = std::make_unique<BlockMetrics::Impl>(*impl_, std::string(name));
    found = impl_->blocks.emplace(name, std::make_unique<BlockMetrics>(std::move(series))).first;
  }
  return found->second.get();
}

// No block can have this name: blocks' names contain a dot.
BlockMetrics* Metrics::UnknownBlock() { return Block("unknown"); }

void Metrics::CountError(Reason reason) {
  impl_->errors_by_reason[static_cast<int>(reason)]->Increment();
}

void Metrics::SetQueue(int64_t tokens, int64_t bytes) {
  impl_->queue_tokens.Set(static_cast<double>(tokens));
  impl_->queue_bytes.Set(static_cast<double>(bytes));
}

void Metrics::SetInflight(int64_t requests) { impl_->inflight.Set(static_cast<double>(requests)); }

void Metrics::SetDeviceHealthy(Device device, bool healthy) {
  impl_->device_healthy.Add({{"device", DeviceName(device)}}).Set(healthy ? 1 : 0);
  // From the start: a rate does not see the step with which a series begins.
  for (int c = 0; c < kFallbackCauses; ++c) {
    const Labels labels = LabelsOf(device, static_cast<FallbackCause>(c));
    impl_->quarantines.Add(labels);
    impl_->recoveries.Add(labels);
  }
}

void Metrics::CountQuarantine(Device device, FallbackCause cause) {
  impl_->quarantines.Add(LabelsOf(device, cause)).Increment();
}

void Metrics::CountRecovery(Device device, FallbackCause cause) {
  impl_->recoveries.Add(LabelsOf(device, cause)).Increment();
}

MemoryGauge* Metrics::Memory(Device device, MemoryPool pool) {
  const std::string pool_name = kPoolNames[static_cast<int>(pool)];
  const std::string where = DeviceName(device);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  std::unique_ptr<MemoryGauge>& gauge = impl_->pools[{where, pool_name}];
  if (gauge == nullptr) {
    const auto state = [&](const char* name) -> Gauge& {
      return impl_->memory.Add({{"device", where}, {"pool", pool_name}, {"state", name}});
    };
    gauge = std::make_unique<MemoryGauge>(
        std::make_unique<MemoryGauge::Impl>(state("reserved"), state("used")));
  }
  return gauge.get();
}

LaneMetrics* Metrics::Lane(Device device, int lane) {
  const std::string where = DeviceName(device);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  std::unique_ptr<LaneMetrics>& series = impl_->lanes[{where, lane}];
  if (series == nullptr) {
    const Labels labels{{"device", where}, {"lane", std::to_string(lane)}};
    series = std::make_unique<LaneMetrics>(std::make_unique<LaneMetrics::Impl>(
        LaneMetrics::Impl{impl_->lane_batches.Add(labels), impl_->lane_busy.Add(labels)}));
  }
  return series.get();
}

std::string Metrics::Expose() const {
  impl_->ReadGpus();
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    for (const auto& [where, pool] : impl_->pools) pool->Publish();
  }
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

double Metrics::Value(std::string_view sample) const {
  const std::string text = Expose();
  const std::string line = absl::StrCat("\n", std::string(sample), " ");
  const size_t at = text.find(line);
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + line.size(), nullptr);
}

}  // namespace fuseblock
