#include "server/engine/worker.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/observe/log.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

double Us(absl::Duration duration) { return absl::ToDoubleMicroseconds(duration); }

}  // namespace

// What an answer's bytes and its share of the budget hang on until the transport lets go.
struct LaneWorker::Answer {
  Ticket ticket;
  OutputPool::Slab slab;              // the outputs lie here,
  std::unique_ptr<std::byte[]> copy;  // or here when slabs had become scarce
};

LaneWorker::LaneWorker(Engine::Impl& engine, size_t device, std::unique_ptr<Lane> lane)
    : engine_(engine),
      device_(device),
      lane_(std::move(lane)),
      gathered_(engine.metrics.Memory(lane_->device(), MemoryPool::kStagingIn)),
      sent_(engine.metrics.Memory(lane_->device(), MemoryPool::kStagingOut)),
      workspace_(engine.metrics.Memory(lane_->device(), MemoryPool::kWorkspace)) {}

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
  ++reserving_;
  std::unique_lock<std::mutex> lock(staging_mutex_);
  const LaneBytes wanted{std::max(bytes.inputs, bytes_.inputs),
                         std::max(bytes.outputs, bytes_.outputs),
                         std::max(bytes.workspace, bytes_.workspace)};
  const auto reserve = [&]() -> absl::Status {
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
    const bool grown = wanted.inputs > bytes_.inputs || wanted.outputs > bytes_.outputs ||
                       wanted.workspace > bytes_.workspace;
    bytes_ = wanted;
    staging_bytes_ = staging_in_.size() + pool_->slab_bytes() * kSlabs;
    workspace_bytes_ = lane_->device_bytes();
    if (grown) {
      Log(LogLevel::kDebug, "lane_sized", "a lane's memory grew",
          {{"device", DeviceName(lane_->device())},
           {"staging_in_bytes", staging_in_.size()},
           {"staging_out_bytes", pool_->slab_bytes() * kSlabs},
           {"device_bytes", lane_->device_bytes()}});
    }
    return absl::OkStatus();
  };
  absl::Status status = reserve();
  --reserving_;
  lock.unlock();
  reserved_.notify_all();
  if (status.ok()) return status;
  const size_t device_side =
      wanted.workspace +
      (lane_->staging() == MemoryKind::kPinned ? wanted.inputs + wanted.outputs : 0);
  return absl::ResourceExhaustedError(absl::StrCat(
      "a lane of ", DeviceName(lane_->device()), " needs ", wanted.inputs, " bytes to gather + ",
      kSlabs, " x ", wanted.outputs, " for outputs + ", device_side, " on the device = ",
      wanted.inputs + kSlabs * wanted.outputs + device_side, " bytes: ", status.message()));
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
      reserved_.wait(lock, [this] { return reserving_ == 0; });
      RunBatch(batch, started);
      batch.Clear();
    }
  }
}

void LaneWorker::RunForCaller() {
  // A lane that is about to grow is for its own thread, which may wait.
  const std::unique_lock<std::mutex> lock(staging_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || reserving_ != 0) {
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
  if (slab_ == nullptr) slab_ = pool_->Take();  // never the last one given away: see Deliver
  Gather(batch, staging_in_.data(), slab_.get());
  batch.run.block = batch.block->on_device[device_];
  gathered_->AddUsed(static_cast<int64_t>(staging_in_.size()));
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
  Observe(batch, answered_by, timings, started);
  Deliver(batch, status, answered_by, timings, started);
}

void LaneWorker::Observe(const Batch& batch, size_t answered_by, const Timings& timings,
                         absl::Time started) {
  BlockMetrics& series = *batch.block->metrics;
  const DeviceType type = engine_.device_list[answered_by].type;
  const DeviceType preferred = engine_.device_list[batch.block->PreferredDevice()].type;
  const int64_t requests = static_cast<int64_t>(batch.entries.size());
  const bool copies = type == DeviceType::kCuda;
  series.ObserveBatch(requests, batch.run.rows, 0);
  // A batch that was moved while it ran has been counted under its own cause.
  if (answered_by == device_ && type != preferred) {
    series.CountFallback(FallbackCause::kDeviceLost, requests);
  }
  for (const auto& entry : batch.entries) {
    series.ObservePhase(Phase::kQueue, started - entry->submitted);
    series.ObservePhase(Phase::kBatch, absl::Microseconds(timings.batch));
    series.ObservePhase(Phase::kCompute, absl::Microseconds(timings.compute));
    if (!copies) continue;
    series.ObservePhase(Phase::kH2d, absl::Microseconds(timings.h2d));
    series.ObservePhase(Phase::kD2h, absl::Microseconds(timings.d2h));
  }
}

void LaneWorker::Deliver(Batch& batch, const absl::Status& status, size_t answered_by,
                         Timings timings, absl::Time started) {
  // Slow readers may hold all slabs but the one just filled. Then the answers are copied out of it,
  // into memory that their tickets account for, rather than that this lane waits for a reader.
  const bool copy = pool_->free_slabs() == 0;
  const std::vector<bool> cancelled = engine_.Forget(batch);
  for (size_t e = 0; e < batch.entries.size(); ++e) {
    Entry& entry = *batch.entries[e];
    Outcome outcome;
    outcome.device = engine_.device_list[answered_by];
    outcome.timings = timings;
    outcome.timings.queue = Us(started - entry.submitted);
    outcome.status = cancelled[e]  ? MakeError(Reason::kCancelled, "cancelled by the client")
                     : status.ok() ? batch.status[e]
                                   : status;
    auto answer = std::make_shared<Answer>();
    size_t bytes = 0;
    for (size_t o = 0; o < batch.run.output_count; ++o) bytes += OutputOf(batch, e, o).size();
    if (outcome.status.ok() && copy) {
      answer->copy.reset(new (std::nothrow) std::byte[bytes]);
      if (answer->copy == nullptr) {
        outcome.status = MakeError(Reason::kMemory, "no memory for the answer");
      }
    }
    if (outcome.status.ok()) {
      std::byte* to = answer->copy.get();
      for (size_t o = 0; o < batch.run.output_count; ++o) {
        outcome.outputs[o] = OutputOf(batch, e, o);
        if (!copy || outcome.outputs[o].empty()) continue;
        std::memcpy(to, outcome.outputs[o].data(), outcome.outputs[o].size());
        outcome.outputs[o] = {to, outcome.outputs[o].size()};
        to += outcome.outputs[o].size();
      }
      answer->ticket = std::move(entry.ticket);
      if (!copy) answer->slab = slab_;
      outcome.storage = std::move(answer);
    } else {
      if (!cancelled[e]) batch.block->metrics->CountShed(ReasonOf(outcome.status));
      entry.ticket.Release();
    }
    std::move(entry.request.done)(std::move(outcome));
  }
  if (!copy) slab_.reset();
  const int64_t answered = static_cast<int64_t>(batch.entries.size());
  batch.entries.clear();  // the last hold on the blocks, before a drain is told that all is done
  engine_.Answered(answered);
}

}  // namespace fuseblock
