// The serving engine: admits requests, queues them, batches them along tokens, runs the batches on
// lanes (CUDA streams or CPU workers) and hands back the outputs. It knows blocks and bytes, and
// nothing of gRPC.
//
// A request's way: Submit -> admission (a Ticket or a refusal) -> the queue of its block -> a free
// lane closes a batch, drops what is cancelled or expired, gathers the payloads into its staging,
// runs the block, and calls each request's `done`. A request longer than a batch goes through lanes
// in chunks; its answer has the bits of the whole computed at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/engine/admission.h"
#include "server/model/served_block.h"

namespace fuseblock {

class Clock;
class Lane;
class Metrics;
struct DeviceMemory;  // memory_plan.h

// Microseconds that a request spent in each phase, summed over its chunks but for the first.
struct Timings {
  double queue = 0;    // from Submit until a lane took it, or the first chunk
  double batch = 0;    // gathering into the staging
  double h2d = 0;      // copy to the device; 0 on the CPU
  double compute = 0;  // the block
  double d2h = 0;      // copy from the device; 0 on the CPU
};

// One input's payload: the pieces in order are the tensor's bytes (row-major, little-endian). A
// piece may start at any address and end inside an element.
struct InputPayload {
  bool present = false;
  DType dtype = DType::kF32;
  absl::InlinedVector<absl::Span<const std::byte>, 2> pieces;
};

// An output's bytes in order: one piece, or one a chunk.
using OutputPieces = absl::InlinedVector<absl::Span<const std::byte>, 1>;

// What a request came to: outputs when status is OK, in the block's order (an output that does not
// exist for this request has no pieces).
struct Outcome {
  absl::Status status;
  std::array<OutputPieces, 2> outputs;
  // Keeps `outputs` valid, and holds the request's budget and the lane's output staging until it is
  // destroyed: keep it as long as the bytes are being sent and no longer.
  std::shared_ptr<const void> storage;
  Device device;
  Timings timings;
};

struct Request {
  std::shared_ptr<const ServedBlock> block;
  int64_t tokens = 0;                   // rows of every input; may be 0
  std::array<InputPayload, 2> inputs;   // in the block's input order, validated by the caller
  std::shared_ptr<const void> payload;  // keeps the pieces valid; released once gathered
  absl::Time deadline = absl::InfiniteFuture();
  std::string tenant;
  int priority = 1;  // 0 highest .. 3
  // Called exactly once, from any thread, possibly before Submit returns. Must not block.
  absl::AnyInvocable<void(Outcome) &&> done;
};

enum class FallbackPolicy {
  kCpu,     // a lost device's blocks are answered by the CPU
  kRefuse,  // they are refused as DEVICE_LOST
};

struct EngineOptions {
  std::vector<Device> devices;  // the preferred one first
  int lanes_per_device = 2;     // of a GPU; the CPU has one lane, which has all its threads
  int cpu_threads = 0;          // of the CPU's lane; 0: the cores that this process may use
  int64_t batch_tokens_max = 4096;
  // Graphs that one lane of a GPU captures (buckets.h); blocks for which no room is left are
  // launched directly.
  int64_t graphs_per_lane_max = 2048;
  // What blocks and lanes may hold: on one GPU (0: what is free when the engine starts, less some
  // for the driver), and on the host (0: no limit).
  int64_t device_bytes_max = 0;
  int64_t host_bytes_max = 0;
  // Waiting or running at a time, over all blocks.
  int64_t queue_tokens_max = 65536;
  int64_t queue_bytes_max = int64_t{1} << 30;
  int64_t queue_requests_max = 65536;
  int64_t request_tokens_max = 4096;  // longer than a batch: computed in chunks
  // Of each tenant; `tenant_quota` holds for those that `tenant_quotas` does not name.
  Budget tenant_quota;
  std::map<std::string, Budget> tenant_quotas;
  FallbackPolicy fallback = FallbackPolicy::kCpu;
  // While the CPU's lane is idle, a request that is expected to take no longer than that runs on
  // Submit's own thread: waking the lane's would take longer. As many do so at a time as there are
  // lanes for callers; zero: none does.
  absl::Duration caller_runs_max = absl::ZeroDuration();
  int caller_lanes = 0;
  // How long one idle lane of a GPU looks out for work before it sleeps, while requests come in
  // quick succession; unset: as the machine's cores allow (handover.h).
  std::optional<absl::Duration> spin_max;
  // A GPU's lane hangs when a batch takes longer than that and than ten times what was predicted.
  absl::Duration watchdog = absl::Seconds(10);
  // Called after every change of a device's health, from any thread, outside the engine's locks, so
  // that health services can ask CanServe again. Must not block.
  std::function<void()> on_device_change;
  // Makes the lanes; unset: the real ones. The one place where faults are injected (faulty_lane.h).
  std::function<absl::StatusOr<std::unique_ptr<Lane>>(Device device, int cpu_threads)> make_lane;
  // Unset: the machine's. For tests; must outlive the engine.
  Clock* clock = nullptr;
};

enum class DeviceHealth {
  kHealthy,
  kQuarantined,  // takes no work; probed from time to time
  kProbing,      // its lanes are running a small known computation
  kLost,         // a sticky error: takes no work until the process is started again
};
std::string_view Name(DeviceHealth health);  // "healthy", "quarantined", "probing", "lost"

struct LaneStatus {
  bool busy = false;
  int64_t batches = 0;            // answered
  int64_t last_batch_tokens = 0;  // of the newest, running or answered
};

struct DeviceStatus {
  Device device;
  DeviceHealth health = DeviceHealth::kHealthy;
  std::string reason;                                     // why it is, or last was, out of service
  int stuck_lanes = 0;                                    // given up as hung, and not come back
  absl::Duration until_probe = absl::InfiniteDuration();  // infinite: none is planned
  size_t staging_bytes = 0;                               // pinned or host
  size_t workspace_bytes = 0;                             // on the device
  std::vector<LaneStatus> lanes;
};

struct QueueStatus {
  std::string block;
  int64_t requests = 0, tokens = 0, bytes = 0;
};

// What waits and what is admitted, at one moment.
struct LoadStatus {
  int64_t queue_requests = 0, queue_tokens = 0, queue_bytes = 0;
  std::vector<QueueStatus> busiest;  // blocks with something waiting, the most tokens first
  // Waiting, running, or their outputs not yet sent.
  int64_t admitted_requests = 0, admitted_requests_max = 0;
  int64_t admitted_tokens = 0, admitted_tokens_max = 0;
  int64_t admitted_bytes = 0, admitted_bytes_max = 0;
  std::vector<TenantStatus> tenants;  // those with a quota, the most tokens first
  size_t tenants_count = 0;           // of all of them
};

// Thread-safe. Destroying it drains with no grace: everything queued is refused as DRAINING. It
// waits for what runs; a lane that hangs is given up, and its thread and memory are left behind.
class Engine {
 public:
  // metrics must outlive the engine, every block that it prepared and every Outcome::storage.
  // INVALID_ARGUMENT when the options contradict one another.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        Metrics& metrics);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Sizes every lane's staging and workspace for the block, captures its graphs, measures what it
  // costs there, and sets what is kept beside it (ServedBlock::metrics, ::engine); call before the
  // block is published. budget: of this block, within the engine's own. measure_max: the longest
  // time, on all devices together, that goes into measuring; 0: only batches tell.
  // RESOURCE_EXHAUSTED, with the sum shown, when there is no room or more than may be used would be
  // needed.
  absl::Status Prepare(const ServedBlock& block, const Budget& budget = {},
                       absl::Duration measure_max = absl::ZeroDuration());

  // Names a request so that it can be cancelled; 0 when it was refused at once.
  using RequestId = uint64_t;
  // Never blocks. A refusal calls done before Submit returns.
  RequestId Submit(Request request);
  // The client is gone: the request ends as CANCELLED at once, and what of it was queued never
  // reaches a device; what is running finishes there and is dropped. Unknown ids are ignored.
  void Cancel(RequestId id);

  // Refuses new requests as DRAINING; returns when everything admitted has been answered and its
  // outputs released (true), or at the deadline with what was queued refused as DRAINING, and so
  // what runs on a GPU, which may never come back (false).
  bool Drain(absl::Time deadline);
  // A lane was given up and has not come back. The engine can be destroyed all the same, and so can
  // blocks that were prepared: what they have on the lane's device is not freed before it is back.
  // Freeing anything else there may wait for ever.
  bool HasStuckLane() const;

  // Whether a block can be answered now: by a healthy device that holds it, or by fallback.
  bool CanServe(const ServedBlock& block) const;
  std::vector<DeviceStatus> Devices() const;
  // What is held for each device, term by term; and the same in the log.
  std::vector<DeviceMemory> Memory() const;
  void LogMemory() const;
  // At most that many of the busiest blocks, and of the busiest tenants.
  LoadStatus Load(size_t busiest_max) const;

  struct Impl;

 private:
  explicit Engine(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace fuseblock
