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

}  // namespace

LaneWorker::LaneWorker(Engine::Impl& engine, size_t device, size_t index,
                       std::unique_ptr<Lane> lane)
    : engine_(engine),
      device_(device),
      index_(index),
      lane_(std::move(lane)),
      gathered_(engine.metrics.Memory(lane_->device(), MemoryPool::kStagingIn)),
      sent_(engine.metrics.Memory(lane_->device(), MemoryPool::kStagingOut)),
      workspace_(engine.metrics.Memory(lane_->device(), MemoryPool::kWorkspace)),
      metrics_(engine.metrics.Lane(lane_->device(), static_cast<int>(index))) {
  gathered_->AddReserved(static_cast<int64_t>(lane_->host_bytes()));
  if (lane_->device().type == DeviceType::kCpu) return;
  lane_->CountGraphsIn(engine.metrics.Memory(lane_->device(), MemoryPool::kGraphs));
}

LaneWorker::~LaneWorker() {
  gathered_->AddReserved(-static_cast<int64_t>(staging_in_.size() + lane_->host_bytes()));
  workspace_->AddReserved(-static_cast<int64_t>(lane_->device_bytes()));
}

void LaneWorker::Start() {
  left_ = false;
  thread_ = std::thread([this] { Loop(); });
}

void LaneWorker::Join() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return left_ || flight_.given_up(); });
    if (left_) break;
    if (flight_.Orphan()) {
      thread_.detach();
      orphaned_ = true;
      return;
    }
  }
  lock.unlock();
  if (thread_.joinable()) thread_.join();
}

bool LaneWorker::GiveUp(absl::Time now, Batch* batch) {
  if (now < flight_.overdue_at()) return false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!flight_.GiveUp(now)) return false;
    *batch = std::move(batch_);
    batch_.Clear();
  }
  changed_.notify_all();  // whoever waits for the thread waits no more
  return true;
}

absl::Status LaneWorker::Reserve(const LaneBytes& bytes) {
  const LaneBytes wanted = Larger(bytes, bytes_);
  absl::Status status = Grow(wanted);
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
    staging_in.MakeResident();
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
  {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes_ = wanted;
  }
  staging_bytes_ = staging_in_.size() + pool_->slab_bytes() * kSlabs + lane_->host_bytes();
  workspace_bytes_ = lane_->device_bytes();
  return absl::OkStatus();
}

absl::Status LaneWorker::Capture(const EngineBlock& block, int form, int bucket,
                                 std::shared_ptr<BlockGraphs>* graphs) {
  LaneBatch batch =
      block.LayOut(form, kTokenBuckets[bucket], staging_in_.data(), staging_in_.data());
  batch.block = block.on_device[device_];
  return lane_->Capture(batch, graphs);
}

LaneBytes LaneWorker::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

absl::StatusOr<absl::Duration> LaneWorker::TimeOf(EngineBlock& block, int64_t tokens,
                                                  absl::Time until) {
  constexpr int kRuns = 3;  // the first pays for what is made at first use
  if (slab_ == nullptr) slab_ = pool_->Take();
  Batch batch;
  batch.parts.push_back({std::make_shared<Entry>(), 0, tokens, 0});
  batch.parts.front().entry->queue = &block.queues.front();
  std::memset(staging_in_.data(), 0, block.BytesNeeded(device_, tokens).inputs);
  Gather(batch, staging_in_.data(), slab_.get(), lane_->parallel_for());
  batch.run.block = block.on_device[device_];
  batch.run.graphs = block.graphs[device_][index_].get();
  absl::Duration best = absl::InfiniteDuration();
  for (int run = 0; run < kRuns && (run == 0 || engine_.clock.Now() < until); ++run) {
    LaneTimes times;
    const absl::Time begin = engine_.clock.Now();
    if (absl::Status s = lane_->Run(batch.run, &times); !s.ok()) return s;
    best = std::min(best, engine_.clock.Now() - begin);
  }
  return best;
}

void LaneWorker::Loop() {
  pthread_setname_np(pthread_self(), absl::StrCat("fb-", DeviceName(lane_->device())).c_str());
  for (;;) {
    Work work = engine_.AwaitWork(device_, *this);
    if (work.kind == Work::kLeave) break;
    if (!Do(work)) return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ = true;
  }
  changed_.notify_all();
}

// False when the engine is gone.
bool LaneWorker::Do(Work& work) {
  switch (work.kind) {
    case Work::kLeave:
      return true;
    case Work::kProbe:
      return Probe(work.probe_round, work.patience);
    case Work::kTask:
      return RunTask(work);
    case Work::kTakeOver:
      RunTakeOver(*work.takeover);
      return true;
    case Work::kBatch:
      batch_ = std::move(work.batch);
      return RunBatch(engine_.clock.Now(), work.patience);
  }
  return true;
}

// False when the engine is gone.
bool LaneWorker::RunBatch(absl::Time started, absl::Duration patience) {
  busy_ = true;
  Gather(batch_, staging_in_.data(), TakeOutputs(batch_), lane_->parallel_for());
  batch_.run.block = batch_.block->on_device[device_];
  batch_.run.graphs = batch_.block->graphs[device_][index_].get();
  gathered_->AddUsed(static_cast<int64_t>(staging_in_.size()));
  last_batch_tokens_ = batch_.run.rows;
  const absl::Time gathered = engine_.clock.Now();

  LaneTimes times;
  absl::Status status;
  if (batch_.run.rows > 0 && patience == absl::InfiniteDuration()) {
    status = lane_->Run(batch_.run, &times);
  } else if (batch_.run.rows > 0) {
    const LaneBatch run = batch_.run;  // the lane may look at it when batch_ is long gone
    running_ = batch_.parts.front().entry->request.block;
    flight_.Begin(gathered + patience);
    status = lane_->Run(run, &times);
    if (const auto owner = flight_.End(); owner != Flight::Owner::kWorker) {
      return LandedLate(owner);
    }
    running_.reset();
  }
  gathered_->AddUsed(-static_cast<int64_t>(staging_in_.size()));
  if (status.ok()) {
    engine_.Succeeded(batch_, device_, engine_.clock.Now() - started);
    engine_.CountIfFallback(batch_, device_);
    const Timings timings{0, Us(gathered - started), Us(times.h2d), Us(times.compute),
                          Us(times.d2h)};
    Observe(batch_, times.padded_rows, engine_.clock.Now() - started);
    Deliver(batch_, timings, started);
  } else {
    outputs_.reset();
    if (!engine_.Failed(device_, *this, batch_, &status)) engine_.Fail(batch_, status);
  }
  batch_.Clear();
  busy_ = false;
  return true;
}

// The lane was given up, and all that is left of its batch lies in this worker's own memory.
bool LaneWorker::LandedLate(Flight::Owner owner) {
  if (owner == Flight::Owner::kNobody) return false;
  { std::lock_guard<std::mutex> lock(mutex_); }  // GiveUp is done with batch_
  if (running_ != nullptr) {
    running_.reset();
    gathered_->AddUsed(-static_cast<int64_t>(staging_in_.size()));
  }
  in_task_.reset();
  outputs_.reset();
  busy_ = false;
  engine_.CameBack(device_);
  return true;
}

// Another lane's batch, gathered once more into this one's staging.
void LaneWorker::RunTakeOver(Engine::Impl::TakeOver& takeover) {
  const absl::Time started = engine_.clock.Now();
  Batch& batch = takeover.batch;
  if (batch.empty()) {
    engine_.StagingReturned(*takeover.from);
    return;
  }
  busy_ = true;
  GatherAgain(batch, staging_in_.data(), TakeOutputs(batch));
  engine_.StagingReturned(*takeover.from);
  last_batch_tokens_ = batch.run.rows;
  batch.run.block = batch.block->on_device[device_];
  batch.run.graphs = batch.block->graphs[device_][index_].get();
  const absl::Time gathered = engine_.clock.Now();
  LaneTimes times;
  absl::Status status;
  if (batch.run.rows > 0) status = lane_->Run(batch.run, &times);
  if (status.ok()) {
    engine_.Succeeded(batch, device_, engine_.clock.Now() - started);
    const Timings timings{0, Us(gathered - started), Us(times.h2d), Us(times.compute),
                          Us(times.d2h)};
    Observe(batch, times.padded_rows, engine_.clock.Now() - started);
    batch.block->metrics->CountFallback(takeover.cause, batch.requests());
    Deliver(batch, timings, started);
  } else {
    outputs_.reset();
    engine_.Fail(batch,
                 MakeError(Reason::kInternal,
                           absl::StrCat("running the batch on ", DeviceName(lane_->device()),
                                        " in place of ", DeviceName(takeover.from->lane().device()),
                                        ": ", status.message())));
  }
  busy_ = false;
}

// False when the engine is gone; then the task lives on with this worker.
bool LaneWorker::RunTask(Work& work) {
  in_task_ = std::move(work.task);
  flight_.Begin(engine_.clock.Now() + work.patience);
  absl::Status status = in_task_->run(*this);
  if (const auto owner = flight_.End(); owner != Flight::Owner::kWorker) return LandedLate(owner);
  in_task_->run = nullptr;  // what it holds is let go before anybody is told that it is over
  engine_.TaskDone(device_, *this, std::move(status));
  in_task_.reset();
  return true;
}

bool LaneWorker::Probe(int64_t round, absl::Duration patience) {
  flight_.Begin(engine_.clock.Now() + patience);
  absl::Status status = Reserve(engine_.NeededOn(device_));
  if (status.ok()) status = Reserve(engine_.probe.BytesNeeded());
  if (status.ok()) status = engine_.probe.Run(*lane_);
  if (const auto owner = flight_.End(); owner != Flight::Owner::kWorker) return LandedLate(owner);
  engine_.Probed(device_, round, status);
  return true;
}

void LaneWorker::Observe(const Batch& batch, int64_t padded_rows, absl::Duration took) {
  batch.block->metrics->ObserveBatch(static_cast<int64_t>(batch.parts.size()), batch.run.rows,
                                     padded_rows);
  metrics_->ObserveBatch(took);
  ++batches_;
}

// Where the batch's outputs go. When readers have all slabs but this one, a request that is
// computed alone, in the host's memory, gets memory of its own at once, which its ticket accounts
// for: its answer then need not be copied out of the slab.
std::byte* LaneWorker::TakeOutputs(const Batch& batch) {
  if (slab_ == nullptr) slab_ = pool_->Take();  // never the last one given away: see Keep
  outputs_ = slab_;
  const Part& first = batch.parts.front();
  const bool alone = batch.parts.size() == 1 && first.whole();
  if (alone && lane_->staging() == MemoryKind::kHost && pool_->free_slabs() == 0) {
    const BatchQueue& queue = *first.entry->queue;
    auto own = AllocateOutputs(queue.block()->OutputBytes(queue.form(), first.rows));
    if (own != nullptr) outputs_ = std::move(own);
  }
  return outputs_.get();
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
  if (outputs_ != slab_ || pool_->free_slabs() >= (batch.parts[part].whole() ? 1 : 2)) {
    result->memory = outputs_;
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

void LaneWorker::Deliver(Batch& batch, Timings timings, absl::Time started) {
  PartResults results(batch.parts.size());
  for (size_t p = 0; p < results.size(); ++p) {
    PartResult& result = results[p];
    result.device = lane_->device();
    result.timings = timings;
    result.timings.queue = Us(started - batch.parts[p].entry->submitted);
    result.status = batch.status[p];
    if (result.status.ok()) Keep(batch, p, &result);
  }
  outputs_.reset();
  slab_.reset();
  engine_.Conclude(batch, std::move(results));
}

}  // namespace fuseblock
