#include "server/engine/worker.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/buckets.h"
#include "server/observe/log.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

double Us(absl::Duration duration) { return absl::ToDoubleMicroseconds(duration); }

// What an answer's bytes and its share of the budget hang on until the transport lets go.
struct Answer {
  Ticket ticket;
  absl::InlinedVector<std::shared_ptr<const void>, 1> memory;
};

Timings Sum(const absl::InlinedVector<PartResult, 1>& results) {
  Timings sum = results.front().timings;
  for (const PartResult& result : absl::MakeConstSpan(results).subspan(1)) {
    sum.batch += result.timings.batch;
    sum.h2d += result.timings.h2d;
    sum.compute += result.timings.compute;
    sum.d2h += result.timings.d2h;
  }
  return sum;
}

void ObservePhases(BlockMetrics& series, DeviceType device, const Timings& timings) {
  series.ObservePhase(Phase::kQueue, absl::Microseconds(timings.queue));
  series.ObservePhase(Phase::kBatch, absl::Microseconds(timings.batch));
  series.ObservePhase(Phase::kCompute, absl::Microseconds(timings.compute));
  if (device != DeviceType::kCuda) return;
  series.ObservePhase(Phase::kH2d, absl::Microseconds(timings.h2d));
  series.ObservePhase(Phase::kD2h, absl::Microseconds(timings.d2h));
}

// The answer of a request that has ended with what lanes made of it.
Outcome OutcomeOf(Entry& entry) {
  std::sort(entry.results.begin(), entry.results.end(),
            [](const PartResult& a, const PartResult& b) { return a.first_row < b.first_row; });
  Outcome outcome;
  outcome.status = std::move(entry.results.front().status);
  outcome.device = entry.results.front().device;
  if (!outcome.status.ok()) {
    entry.ticket.Release();
    return outcome;
  }
  outcome.timings = Sum(entry.results);
  auto answer = std::make_shared<Answer>();
  for (PartResult& result : entry.results) {
    for (size_t o = 0; o < result.outputs.size(); ++o) {
      if (!result.outputs[o].empty()) outcome.outputs[o].push_back(result.outputs[o]);
    }
    answer->memory.push_back(std::move(result.memory));
  }
  answer->ticket = std::move(entry.ticket);
  outcome.storage = std::move(answer);
  return outcome;
}

}  // namespace

class LaneWorker::Pause {
 public:
  explicit Pause(LaneWorker& worker) : worker_(worker) {
    ++worker_.pausing_;
    worker_.staging_mutex_.lock();
  }
  ~Pause() {
    --worker_.pausing_;
    worker_.staging_mutex_.unlock();
    worker_.resumed_.notify_all();
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  LaneWorker& worker_;
};

LaneWorker::LaneWorker(Engine::Impl& engine, size_t device, size_t index,
                       std::unique_ptr<Lane> lane)
    : engine_(engine),
      device_(device),
      index_(index),
      lane_(std::move(lane)),
      gathered_(engine.metrics.Memory(lane_->device(), MemoryPool::kStagingIn)),
      sent_(engine.metrics.Memory(lane_->device(), MemoryPool::kStagingOut)),
      workspace_(engine.metrics.Memory(lane_->device(), MemoryPool::kWorkspace)),
      metrics_(engine.metrics.Lane(lane_->device(), static_cast<int>(index))) {}

LaneWorker::~LaneWorker() {
  gathered_->AddReserved(-static_cast<int64_t>(staging_in_.size()));
  workspace_->AddReserved(-static_cast<int64_t>(lane_->device_bytes()));
}

void LaneWorker::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void LaneWorker::Join() {
  if (thread_.joinable()) thread_.join();
}

absl::Status LaneWorker::Reserve(const LaneBytes& bytes) {
  const LaneBytes wanted{
      std::max(bytes.inputs, bytes_.inputs), std::max(bytes.outputs, bytes_.outputs),
      std::max(bytes.workspace, bytes_.workspace), std::max(bytes.captured, bytes_.captured)};
  absl::Status status;
  {
    const Pause pause(*this);
    status = Grow(wanted);
  }
  if (status.ok()) return status;
  const size_t device_side =
      wanted.workspace + (lane_->staging() == MemoryKind::kPinned
                              ? wanted.inputs + wanted.outputs + wanted.captured
                              : 0);
  return absl::ResourceExhaustedError(absl::StrCat(
      "a lane of ", DeviceName(lane_->device()), " needs ", wanted.inputs, " bytes to gather + ",
      kSlabs, " x ", wanted.outputs, " for outputs + ", device_side, " on the device = ",
      wanted.inputs + kSlabs * wanted.outputs + device_side, " bytes: ", status.message()));
}

absl::Status LaneWorker::Grow(const LaneBytes& wanted) {
  Buffer staging_in;
  std::shared_ptr<OutputPool> pool;
  if (wanted.inputs > staging_in_.size()) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(lane_->staging(), wanted.inputs);
    if (!buffer.ok()) return buffer.status();
    staging_in = *std::move(buffer);
  }
  if (pool_ == nullptr || wanted.outputs > pool_->slab_bytes()) {
    auto made = OutputPool::Create(lane_->staging(), wanted.outputs, kSlabs, sent_);
    if (!made.ok()) return made.status();
    pool = *std::move(made);
  }
  const int64_t before = static_cast<int64_t>(lane_->device_bytes());
  if (absl::Status s = lane_->Reserve(wanted); !s.ok()) return s;
  workspace_->AddReserved(static_cast<int64_t>(lane_->device_bytes()) - before);
  if (staging_in.size() > 0) {
    gathered_->AddReserved(static_cast<int64_t>(staging_in.size() - staging_in_.size()));
    staging_in_ = std::move(staging_in);
  }
  if (pool != nullptr) {
    slab_.reset();
    pool_ = std::move(pool);  // the former one lives on until its last slab has been sent
  }
  bytes_ = wanted;
  staging_bytes_ = staging_in_.size() + pool_->slab_bytes() * kSlabs;
  workspace_bytes_ = lane_->device_bytes();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<BlockGraphs>> LaneWorker::Capture(const EngineBlock& block) {
  std::shared_ptr<BlockGraphs> graphs;
  const int buckets = BucketsUpTo(engine_.options.batch_tokens_max);
  int64_t room = engine_.options.graphs_per_lane_max - lane_->graphs().count;
  for (int form = 0; form < kForms; ++form) {
    if (!block.HasForm(form)) continue;
    for (int bucket = 0; bucket < buckets; ++bucket) {
      if (room-- <= 0) return nullptr;
      const Pause pause(*this);
      LaneBatch batch =
          block.LayOut(form, kTokenBuckets[bucket], staging_in_.data(), staging_in_.data());
      batch.block = block.on_device[device_];
      const absl::Status status = lane_->Capture(batch, &graphs);
      if (absl::IsUnavailable(status)) return status;
      if (!status.ok()) {
        Log(LogLevel::kWarning, "not_captured",
            absl::StrCat("launched directly: ", std::string(status.message())),
            {{"block", block.name}, {"device", DeviceName(lane_->device())}});
        return nullptr;
      }
      if (graphs == nullptr) return nullptr;
    }
  }
  return graphs;
}

void LaneWorker::Measure(EngineBlock& block, absl::Duration time_max) {
  if (time_max <= absl::ZeroDuration()) return;
  const absl::Time until = MonotonicNow() + time_max;
  const int64_t tokens_max = block.queues.front().batch_tokens_max();
  for (int64_t tokens = 1; MonotonicNow() < until; tokens = std::min(tokens * 4, tokens_max)) {
    const std::optional<absl::Duration> took = TimeOf(block, tokens, until);
    if (!took.has_value()) return;
    block.costs[device_].Measure(tokens, *took);
    // The next one would not end in time.
    if (tokens == tokens_max || MonotonicNow() + *took * 4 > until) return;
  }
}

std::optional<absl::Duration> LaneWorker::TimeOf(EngineBlock& block, int64_t tokens,
                                                 absl::Time until) {
  constexpr int kRuns = 3;  // the first pays for what is made at first use
  const Pause pause(*this);
  if (slab_ == nullptr) slab_ = pool_->Take();
  Batch batch;
  batch.parts.push_back({std::make_shared<Entry>(), 0, tokens, 0});
  batch.parts.front().entry->queue = &block.queues.front();
  std::memset(staging_in_.data(), 0, block.BytesNeeded(device_, tokens).inputs);
  Gather(batch, staging_in_.data(), slab_.get());
  batch.run.block = block.on_device[device_];
  batch.run.graphs = block.graphs[device_][index_].get();
  std::optional<absl::Duration> best;
  for (int run = 0; run < kRuns && (run == 0 || MonotonicNow() < until); ++run) {
    LaneTimes times;
    const absl::Time begin = MonotonicNow();
    if (!lane_->Run(batch.run, &times).ok()) {
      best.reset();
      break;
    }
    const absl::Duration took = MonotonicNow() - begin;
    best = std::min(best.value_or(took), took);
  }
  return best;
}

void LaneWorker::Loop() {
  pthread_setname_np(pthread_self(), absl::StrCat("fb-", DeviceName(lane_->device())).c_str());
  Batch batch;
  Engine::Impl::TakeOver* takeover = nullptr;
  while (engine_.AwaitWork(device_, *this, &batch, &takeover)) {
    if (takeover != nullptr) {
      // In the failed lane's staging; of this lane it needs the threads and the workspace.
      std::unique_lock<std::mutex> lock(staging_mutex_);
      takeover->status = lane_->Run(takeover->batch, &takeover->times);
      lock.unlock();
      engine_.FinishTakeOver(*takeover);
    } else {
      const absl::Time started = MonotonicNow();
      std::unique_lock<std::mutex> lock(staging_mutex_);
      resumed_.wait(lock, [this] { return pausing_ == 0; });
      RunBatch(batch, started);
      batch.Clear();
    }
  }
}

void LaneWorker::RunForCaller() {
  // A lane that is about to grow is for its own thread, which may wait.
  const std::unique_lock<std::mutex> lock(staging_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || pausing_ != 0) {
    engine_.ReturnToQueue(device_, *this, &callers_batch);
    return;
  }
  const absl::Time began = MonotonicNow();
  absl::Time now = began;
  do {
    RunBatch(callers_batch, now);
    callers_batch.Clear();
    now = MonotonicNow();
  } while (engine_.NextForCaller(device_, *this, now - began, &callers_batch));
}

// With the staging locked.
void LaneWorker::RunBatch(Batch& batch, absl::Time started) {
  busy_ = true;
  if (slab_ == nullptr) slab_ = pool_->Take();  // never the last one given away: see Deliver
  Gather(batch, staging_in_.data(), slab_.get());
  batch.run.block = batch.block->on_device[device_];
  batch.run.graphs = batch.block->graphs[device_][index_].get();
  gathered_->AddUsed(static_cast<int64_t>(staging_in_.size()));
  last_batch_tokens_ = batch.run.rows;
  const absl::Time gathered = MonotonicNow();

  LaneTimes times;
  size_t answered_by = device_;
  absl::Status status;
  if (batch.run.rows > 0) {
    status = lane_->Run(batch.run, &times);
    if (!status.ok()) status = engine_.Rescue(&answered_by, batch, status, &times);
  }
  const Timings timings{0, Us(gathered - started), Us(times.h2d), Us(times.compute), Us(times.d2h)};
  if (status.ok()) {
    engine_.RecordCost(*batch.block, answered_by, batch.run.rows, MonotonicNow() - started);
  }
  gathered_->AddUsed(-static_cast<int64_t>(staging_in_.size()));
  Observe(batch, answered_by, times.padded_rows);
  metrics_->ObserveBatch(MonotonicNow() - started);
  ++batches_;
  Deliver(batch, status, answered_by, timings, started);
  busy_ = false;
}

void LaneWorker::Observe(const Batch& batch, size_t answered_by, int64_t padded_rows) {
  BlockMetrics& series = *batch.block->metrics;
  const DeviceType type = engine_.device_list[answered_by].type;
  const DeviceType preferred = engine_.device_list[batch.block->PreferredDevice()].type;
  series.ObserveBatch(static_cast<int64_t>(batch.parts.size()), batch.run.rows, padded_rows);
  // A batch that was moved while it ran has been counted under its own cause.
  if (answered_by == device_ && type != preferred) {
    series.CountFallback(FallbackCause::kDeviceLost, batch.requests());
  }
}

void LaneWorker::Keep(const Batch& batch, size_t part, PartResult* result) {
  size_t bytes = 0;
  for (size_t o = 0; o < batch.run.output_count; ++o) {
    result->outputs[o] = OutputOf(batch, part, o);
    bytes += result->outputs[o].size();
  }
  // Slow readers may hold all slabs but the one just filled. Then the answers are copied out of it,
  // into memory that their tickets account for, rather than that this lane waits for a reader. A
  // chunk, which waits for its request's others, leaves one more slab to those.
  if (pool_->free_slabs() >= (batch.parts[part].whole() ? 1 : 2)) {
    result->memory = slab_;
    return;
  }
  const std::shared_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (copy == nullptr) {
    result->status = MakeError(Reason::kMemory, "no memory for the answer");
    return;
  }
  std::byte* to = copy.get();
  for (absl::Span<const std::byte>& output : result->outputs) {
    if (output.empty()) continue;
    std::memcpy(to, output.data(), output.size());
    output = {to, output.size()};
    to += output.size();
  }
  result->memory = copy;
}

void LaneWorker::Deliver(Batch& batch, const absl::Status& status, size_t answered_by,
                         Timings timings, absl::Time started) {
  std::vector<PartResult> results(batch.parts.size());
  for (size_t p = 0; p < results.size(); ++p) {
    PartResult& result = results[p];
    result.device = engine_.device_list[answered_by];
    result.timings = timings;
    result.timings.queue = Us(started - batch.parts[p].entry->submitted);
    result.status = status.ok() ? batch.status[p] : status;
    if (result.status.ok()) Keep(batch, p, &result);
  }
  slab_.reset();
  Entries ended = engine_.Finish(batch, std::move(results));
  for (const EntryPtr& entry : ended) {
    Outcome outcome = OutcomeOf(*entry);
    if (outcome.status.ok()) {
      ObservePhases(*batch.block->metrics, outcome.device.type, outcome.timings);
    } else {
      batch.block->metrics->CountShed(ReasonOf(outcome.status));
    }
    if (!entry->with_lanes) entry->request.payload.reset();
    std::move(entry->request.done)(std::move(outcome));
  }
  const int64_t answered = static_cast<int64_t>(ended.size());
  ended.clear();
  batch.parts.clear();  // the last hold on the blocks, before a drain is told that all is done
  if (answered > 0) engine_.Answered(answered);
}

}  // namespace fuseblock
