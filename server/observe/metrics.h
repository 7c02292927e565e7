// What the server counts and times, in the Prometheus sense. The only names of series are here and
// in metrics.cc; the hot path holds handles and looks nothing up.
//
// Thread-safe throughout. Label values are bounded: blocks are those that were loaded, names that
// only a client made up are all counted under block="unknown".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/tensor_view.h"
#include "server/reason.h"

namespace fuseblock {

// Label `rpc`.
enum class Rpc : uint8_t { kRunBlock, kStreamBlocks };
inline constexpr int kRpcs = 2;
std::string_view Name(Rpc rpc);  // "RunBlock"

// Label `phase`: where a request's time goes.
enum class Phase : uint8_t { kQueue, kBatch, kH2d, kCompute, kD2h, kEncode };
inline constexpr int kPhases = 6;
std::string_view Name(Phase phase);  // "queue"

// Label `cause` of fallback_total: why another device than the preferred one ran a batch. Also of
// device_quarantines_total and device_recoveries_total: what took the device out of service.
enum class FallbackCause : uint8_t {
  kDeviceLost,    // a sticky error, or the device was quarantined before
  kLaunchFailed,  // the batch's own launch or copy failed
  kOutOfMemory,   // the device had no memory for the batch
  kHung,          // the batch did not come back in time
};
inline constexpr int kFallbackCauses = 4;
std::string_view Name(FallbackCause cause);  // "device_lost"

// Label `result` of shadow_total: what came of running a request again to compare the outputs.
enum class ShadowResult : uint8_t {
  kEqual,      // bit for bit
  kDifferent,  // shadow_difference_ulp says how far
  kFailed,     // the run failed, or gave outputs of another size
  kSkipped,    // no room in the shadow's budget, or the revision was unloaded meanwhile
};
inline constexpr int kShadowResults = 4;

// Label `pool` of memory_bytes. Label `state` is "reserved" or "used".
enum class MemoryPool : uint8_t {
  kStagingIn,   // where lanes gather requests
  kStagingOut,  // where outputs lie until they are sent
  kWorkspace,   // on the device: intermediates, and the device's side of the staging
  kGraphs,      // on the device: captured graphs, and memory that only they still work on
  kRequests,    // inputs and outputs of admitted requests, against max_queue_bytes
};
inline constexpr int kMemoryPools = 5;

// One block's series. Lives as long as its Metrics, so a plain pointer to it never dangles; a block
// that is loaded again continues its series.
class BlockMetrics {
 public:
  struct Impl;
  explicit BlockMetrics(std::unique_ptr<Impl> impl);
  ~BlockMetrics();
  BlockMetrics(const BlockMetrics&) = delete;
  BlockMetrics& operator=(const BlockMetrics&) = delete;

  // Once for each request, when its answer is given to the transport (on a stream: for each
  // message): requests_total{block,rpc,code}, request_duration_seconds{block,rpc}, and
  // errors_total{category} when it failed. Called by the RPC layer.
  void ObserveRequest(Rpc rpc, const absl::Status& status, absl::Duration whole);
  // request_bytes and response_bytes. Called by the RPC layer.
  void ObserveBytes(int64_t request, int64_t response);
  // phase_duration_seconds{block,phase}. The engine observes all but kEncode, which is the RPC
  // layer's.
  void ObservePhase(Phase phase, absl::Duration duration);
  // shed_total{block,cause}, for a reason that counts as shed; others are ignored. Called by
  // whoever refuses: the engine for whatever Submit takes, the RPC layer for what never came there.
  void CountShed(Reason reason);
  // fallback_total{block,cause}, by the engine, for each request.
  void CountFallback(FallbackCause cause, int64_t requests);
  // batch_requests, batch_tokens, useful_tokens_total, padded_tokens_total; by the engine.
  void ObserveBatch(int64_t requests, int64_t tokens, int64_t padded_tokens);
  // shadow_total{block,result} for a run that gave nothing to compare.
  void CountShadow(ShadowResult result);
  // The same for one that did, and shadow_difference_ulp{block}. ulp: the largest difference of the
  // outputs in units in the last place; negative: every bit was equal.
  void ObserveShadow(double ulp);
  // weights_bytes{block,device}: more when a revision is loaded, less when one is freed.
  void AddWeightBytes(Device device, int64_t delta);

  // What requests_total says of the block, over all RPCs.
  struct Totals {
    int64_t requests = 0, errors = 0;
  };
  Totals RequestTotals() const;

 private:
  std::unique_ptr<Impl> impl_;
};

// One lane's series. Lives as long as its Metrics.
class LaneMetrics {
 public:
  struct Impl;
  explicit LaneMetrics(std::unique_ptr<Impl> impl);
  ~LaneMetrics();
  // A batch was answered that kept the lane busy for so long: lane_batches_total{device,lane},
  // lane_busy_seconds_total{device,lane}.
  void ObserveBatch(absl::Duration busy);

 private:
  std::unique_ptr<Impl> impl_;
};

// One pool of memory on one device: memory_bytes{device,pool,state}. Lives as long as its Metrics.
class MemoryGauge {
 public:
  struct Impl;
  explicit MemoryGauge(std::unique_ptr<Impl> impl);
  ~MemoryGauge();
  void AddReserved(int64_t delta);  // bytes allocated, or for kRequests allowed
  void AddUsed(int64_t delta);      // bytes of these in use
  void Publish();                   // for whoever reads the series next; Metrics::Expose does it

 private:
  std::unique_ptr<Impl> impl_;
};

struct BuildInfo {
  std::string version, commit;
  std::string cuda;  // the runtime's version, or "none"
  std::string isa;   // what the CPU kernels run on: "AVX3_SPR"
};

class Metrics {
 public:
  // nvml_library: where GPUs are asked how busy they are; nothing is exported if it can't be
  // loaded.
  explicit Metrics(const char* nvml_library = "libnvidia-ml.so.1");
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void SetBuildInfo(const BuildInfo& info);  // once

  // The series of a loaded block; takes a lock: call it when the block is loaded and keep the
  // pointer (ServedBlock::metrics).
  BlockMetrics* Block(std::string_view name);
  // For requests whose block does not exist.
  BlockMetrics* UnknownBlock();
  // errors_total{category} for a failure that belongs to no request: of GetBlock, of a stream as a
  // whole, of a call to the admin port. Called by the RPC layer.
  void CountError(Reason reason);

  // Gauges of the engine: what waits in the queues, and what was admitted and not yet released.
  void SetQueue(int64_t tokens, int64_t bytes);
  void SetInflight(int64_t requests);
  void SetDeviceHealthy(Device device, bool healthy);
  // device_quarantines_total{device,cause}, device_recoveries_total{device,cause}: how often a
  // device was taken out of service, and how often a probe brought it back.
  void CountQuarantine(Device device, FallbackCause cause);
  void CountRecovery(Device device, FallbackCause cause);
  // Takes a lock: call it at start and keep the pointer.
  MemoryGauge* Memory(Device device, MemoryPool pool);
  LaneMetrics* Lane(Device device, int lane);  // the same

  // The text exposition of every series.
  std::string Expose() const;
  // One sample by its full name and labels exactly as exposed, e.g.
  // `fuseblock_shed_total{block="m.layers.0.mlp",cause="expired"}`; 0 when there is none. For tests
  // and the status page.
  double Value(std::string_view sample) const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fuseblock
