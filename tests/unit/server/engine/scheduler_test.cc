// The scheduler on a simulated clock, before simulated lanes: thousands of seeded schedules of
// arrivals, batches, failures, lost devices, cancellations, deadlines and slow readers, each
// checked step by step for what must hold whatever happens.
#include "server/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/reason.h"

namespace fuseblock {
namespace {

constexpr int kSchedules = 2000;
const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

// What the test knows of a request, apart from the scheduler.
struct Seen {
  EntryPtr entry;
  int64_t arrival = 0;   // when it last came to the queue
  bool started = false;  // a part of it left since then
  bool at_once = false;
  int answers = 0;
  // By other requests of its line: parts of theirs that began while it waited.
  std::map<Engine::RequestId, int> passed_by;
};

// A server with two devices of one kind and one of another.
class World {
 public:
  explicit World(uint32_t seed) : random_(seed) {
    for (int64_t n = 1; n <= 32; n *= 2) cost_.Observe(n, absl::Microseconds(50 + n * 10), now_);
  }

  void Run() {
    for (int step = 0; step < 150 && !Failed(); ++step) {
      const int action = Below(20);
      if (action < 9) Arrive();
      if (action == 9) Cancel();
      if (action == 10) ReleaseOne();
      if (action == 11) SetAvailable(Below(3), Below(3) > 0);
      if (action >= 12) now_ += absl::Microseconds(Below(300));
      if (action % 3 == 0) Expire();
      FinishLanes(now_);
      FillLanes();
      CheckSums();
    }
    for (int device = 0; device < 3; ++device) SetAvailable(device, true);
    FillLanes();
    while (scheduler_.requests() > 0 && !Failed()) {
      now_ += absl::Milliseconds(1);
      FinishLanes(now_);
      FillLanes();
    }
    FinishLanes(absl::InfiniteFuture());
    EXPECT_EQ(scheduler_.requests(), 0u);
    held_.clear();
    for (const auto& [id, seen] : seen_) EXPECT_EQ(seen.answers, 1) << "request " << id;
    EXPECT_EQ(refused_ + static_cast<int>(seen_.size()), arrived_);
    EXPECT_EQ(admission_->use().requests, 0);
    EXPECT_EQ(admission_->use().tokens, 0);
    EXPECT_EQ(admission_->use().bytes, 0);
    EXPECT_EQ(budget_->use.requests, 0);
    for (const char* tenant : {"a", "b", "c"}) EXPECT_EQ(admission_->UseOf(tenant).tokens, 0);
    EXPECT_TRUE(scheduler_.queue().empty());
    EXPECT_EQ(scheduler_.queue().Backlog(), absl::ZeroDuration());
    EXPECT_EQ(scheduler_.queue().NextDeadline(), absl::InfiniteFuture());
  }

 private:
  struct Lane {
    int device;
    Parts parts;
    absl::Time until;
  };

  static bool Failed() { return ::testing::Test::HasFailure(); }
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  static DeviceType TypeOf(int device) { return device < 2 ? DeviceType::kCuda : DeviceType::kCpu; }

  // As WhoServes: the GPUs while there is one, else the CPU.
  bool Takes(int device) const {
    const bool any_gpu = available_[0] || available_[1];
    return available_[device] && (TypeOf(device) == DeviceType::kCuda) == any_gpu;
  }

  void Arrive() {
    ++arrived_;
    auto entry = std::make_shared<Entry>();
    entry->queue = &blocks_[Below(3)];
    const int64_t batch = entry->queue->batch_tokens_max();
    entry->request.tokens = Below(6) == 0 ? Below(static_cast<int>(batch) * 5) : Below(9);
    entry->request.tenant = std::string(1, static_cast<char>('a' + Below(3)));
    entry->request.priority = Below(3);
    entry->bytes = entry->request.tokens * 6;
    entry->submitted = now_;
    if (Below(3) == 0) entry->deadline = now_ + absl::Microseconds(Below(3000));
    const absl::Status admitted = scheduler_.Admit(entry, {2, absl::ZeroDuration(), &cost_}, now_);
    if (!admitted.ok()) {
      ++refused_;
      const Reason reason = ReasonOf(admitted);
      EXPECT_TRUE(Traits(reason).shed || reason == Reason::kTooLarge) << admitted;
      return;
    }
    EXPECT_GT(entry->deadline, now_);
    Seen& seen = seen_[entry->id];
    seen.entry = entry;
    seen.arrival = ++arrivals_;
    Lane& first = lanes_.front();
    if (Below(4) > 0 || !scheduler_.queue().empty() || !first.parts.empty() ||
        !Takes(first.device) || entry->request.tokens > batch) {
      scheduler_.Queue(entry);
      return;
    }
    first.parts.push_back(scheduler_.StartAtOnce(entry));
    first.until = now_ + absl::Microseconds(1 + Below(400));
    seen.started = seen.at_once = true;
  }

  void Cancel() {
    if (seen_.empty()) return;
    // One that has ended, too.
    const auto one = std::next(seen_.begin(), Below(static_cast<int>(seen_.size())));
    const EntryPtr entry = scheduler_.Cancel(one->first);
    EXPECT_EQ(entry == nullptr, one->second.answers > 0 || one->second.at_once);
    if (entry != nullptr) Answer(*entry, false);
  }

  void Expire() {
    for (const EntryPtr& entry : scheduler_.TakeExpired(now_)) {
      EXPECT_LE(entry->deadline, now_);
      Answer(*entry, false);
    }
  }

  void SetAvailable(int device, bool available) {
    available_[device] = available;
    if (available_[0] || available_[1] || available_[2]) return;
    for (const EntryPtr& entry : scheduler_.TakeAll([](const BatchQueue&) { return true; })) {
      Answer(*entry, false);
    }
    EXPECT_TRUE(scheduler_.queue().empty());
  }

  void ReleaseOne() {
    if (!held_.empty()) held_.erase(held_.begin() + Below(static_cast<int>(held_.size())));
  }

  // A refusal, or an answer whose reader may be slow.
  void Answer(Entry& entry, bool ok) {
    EXPECT_TRUE(entry.ended);
    EXPECT_EQ(++seen_[entry.id].answers, 1) << "request " << entry.id;
    if (!ok) {
      entry.ticket.Release();
      return;
    }
    int64_t rows = 0;
    std::sort(entry.results.begin(), entry.results.end(),
              [](const auto& a, const auto& b) { return a.first_row < b.first_row; });
    for (const PartResult& result : entry.results) {
      EXPECT_EQ(result.first_row, rows);
      EXPECT_EQ(result.device.type, entry.results.front().device.type);
      rows += result.rows;
    }
    EXPECT_EQ(rows, entry.request.tokens);
    held_.push_back(std::move(entry.ticket));
    if (Below(4) > 0) held_.pop_back();
  }

  void FillLanes() {
    for (Lane& lane : lanes_) {
      if (!lane.parts.empty() || !Takes(lane.device)) continue;
      Entries expired;
      scheduler_.Take([](const BatchQueue&) { return true; },
                      [this](const BatchQueue&) -> const CostModel& { return cost_; }, now_,
                      &lane.parts, &expired);
      for (const EntryPtr& entry : expired) {
        EXPECT_LT(entry->deadline, now_ + cost_.Certain(entry->queue->batch_tokens_max(), now_));
        Answer(*entry, false);
      }
      EXPECT_TRUE(!lane.parts.empty() || scheduler_.queue().empty()) << "a lane idles";
      if (lane.parts.empty()) continue;
      lane.until = now_ + absl::Microseconds(1 + Below(400));
      CheckBatch(lane.parts);
    }
  }

  void FinishLanes(absl::Time until) {
    for (;;) {
      const auto next = std::min_element(lanes_.begin(), lanes_.end(), [](auto& a, auto& b) {
        return std::pair(a.parts.empty(), a.until) < std::pair(b.parts.empty(), b.until);
      });
      if (next->parts.empty() || next->until > until) return;
      // A GPU's batch that fails may have been rescued on the CPU.
      const bool failed = Below(25) == 0;
      const bool moved = TypeOf(next->device) == DeviceType::kCuda && Below(25) == 0;
      const Parts parts = std::exchange(next->parts, {});
      for (const Part& part : parts) {
        PartResult result;
        result.device = {moved ? DeviceType::kCpu : TypeOf(next->device), 0};
        if (failed) result.status = MakeError(Reason::kInternal, "failed");
        const int round = part.entry->round;
        if (scheduler_.Finish(part, std::move(result), now_)) {
          Answer(*part.entry, part.entry->results.front().status.ok());
        }
        if (part.entry->round == round) continue;
        Seen& seen = seen_[part.entry->id];
        seen.started = false;
        seen.passed_by.clear();
        seen.arrival = ++arrivals_;
      }
    }
  }

  bool SameLine(const Entry& a, const Entry& b) const {
    return a.queue == b.queue && a.request.tenant == b.request.tenant &&
           a.request.priority == b.request.priority;
  }

  void CheckBatch(const Parts& parts) {
    int64_t tokens = 0;
    for (const Part& part : parts) {
      const Entry& entry = *part.entry;
      Seen& seen = seen_[entry.id];
      tokens += part.rows;
      EXPECT_EQ(entry.queue, parts[0].entry->queue);
      EXPECT_EQ(seen.answers, 0) << "launched after it had ended";
      for (auto& [id, other] : seen_) {
        const Entry& waiting = *other.entry;
        if (id == entry.id || other.started || other.answers > 0 || !SameLine(waiting, entry)) {
          continue;
        }
        if (!seen.started) {
          EXPECT_LT(seen.arrival, other.arrival) << "out of order in a line";
        }
        EXPECT_LE(++other.passed_by[entry.id], 1) << "waits for more than a chunk of another";
      }
      seen.started = true;
    }
    EXPECT_LE(tokens, parts[0].entry->queue->batch_tokens_max());
    for (const Part& part : parts) {
      EXPECT_GE(part.entry->deadline, now_ + cost_.Certain(tokens, now_)) << "will be too late";
    }
  }

  void CheckSums() {
    int64_t tokens = 0, bytes = 0, requests = static_cast<int64_t>(held_.size());
    absl::Duration backlog;
    for (const auto& [id, seen] : seen_) {
      if (seen.answers > 0) continue;
      const Entry& entry = *seen.entry;
      ++requests;
      const int64_t left = entry.request.tokens - entry.taken;
      tokens += left;
      bytes += left * 6;
      if (FairQueue::Waits(entry)) {
        backlog +=
            entry.request.tokens == 0 ? entry.cost : entry.cost * left / entry.request.tokens;
      }
    }
    EXPECT_EQ(scheduler_.queue().tokens(), tokens);
    EXPECT_EQ(scheduler_.queue().bytes(), bytes);
    EXPECT_EQ(scheduler_.queue().Backlog(), backlog);
    EXPECT_EQ(admission_->use().requests, requests);
  }

  std::mt19937 random_;
  absl::Time now_ = kStart;
  CostModel cost_;
  const std::shared_ptr<Admission> admission_ =
      std::make_shared<Admission>(AdmissionLimits{{200, 1200, 40}, 160, {180}, {{"b", {90}}}});
  const std::shared_ptr<BudgetAccount> budget_ =
      std::make_shared<BudgetAccount>(BudgetAccount{"the budget", {150, 800, 20}, {}});
  BatchQueue blocks_[3] = {BatchQueue(8, nullptr, 0, budget_), BatchQueue(16, nullptr, 1, budget_),
                           BatchQueue(32)};
  Scheduler scheduler_{admission_};
  bool available_[3] = {true, true, true};
  std::vector<Lane> lanes_ = {{0, {}, {}}, {0, {}, {}}, {1, {}, {}}, {2, {}, {}}};
  std::map<Engine::RequestId, Seen> seen_;
  int64_t arrivals_ = 0;
  std::vector<Ticket> held_;
  int arrived_ = 0, refused_ = 0;
};

// One block on one lane, 10 ms a batch of up to 4 tokens.
class OneLane : public ::testing::Test {
 protected:
  OneLane() { cost_.Observe(4, kBatch, kStart); }

  absl::Status Admit(absl::Duration deadline, absl::Duration wait, int64_t tokens = 4) {
    entry_ = std::make_shared<Entry>();
    entry_->queue = &block_;
    entry_->request.tokens = tokens;
    entry_->submitted = kStart;
    entry_->deadline = kStart + deadline;
    return scheduler_.Admit(entry_, {1, wait, &cost_}, kStart);
  }
  EntryPtr Queue(absl::Duration deadline, int64_t tokens = 4) {
    EXPECT_TRUE(Admit(deadline, absl::ZeroDuration(), tokens).ok());
    scheduler_.Queue(entry_);
    return entry_;
  }
  Parts TakeAt(absl::Duration when) {
    Parts batch;
    expired_.clear();
    scheduler_.Take([](const BatchQueue&) { return true; },
                    [this](const BatchQueue&) -> const CostModel& { return cost_; }, kStart + when,
                    &batch, &expired_);
    return batch;
  }

  const absl::Duration kBatch = absl::Milliseconds(10);
  CostModel cost_;
  BatchQueue block_{4};
  const std::shared_ptr<Admission> admission_ = std::make_shared<Admission>(AdmissionLimits());
  Scheduler scheduler_{admission_};
  EntryPtr entry_;
  Entries expired_;
};

TEST_F(OneLane, AWaitIsExpectedToBeLongerThanPredicted) {
  EXPECT_EQ(ReasonOf(Admit(kBatch * 5, kBatch * 3)), Reason::kDeadlineInfeasible);
  EXPECT_TRUE(Admit(kBatch * 7, kBatch * 3).ok());
}

TEST_F(OneLane, WhatFindsNothingBeforeItIsLetTry) {
  EXPECT_EQ(ReasonOf(Admit(kBatch * 0.9, absl::ZeroDuration())), Reason::kDeadlineInfeasible);
  EXPECT_TRUE(Admit(kBatch, absl::ZeroDuration()).ok());
}

// The batches before it took longer than predicted.
TEST_F(OneLane, WhatCouldOnlyBeTooLateIsNotRun) {
  const EntryPtr late = Queue(kBatch * 4), next = Queue(kBatch * 8);
  const Parts batch = TakeAt(kBatch * 3.1);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].entry, next);
  ASSERT_EQ(expired_, Entries{late});
  EXPECT_TRUE(late->ended);
  EXPECT_FALSE(late->with_lanes) << "its payload can go";
  EXPECT_EQ(scheduler_.requests(), 1u);
}

TEST_F(OneLane, WhatCanJustBeInTimeIsRun) {
  const EntryPtr last = Queue(kBatch * 4);
  const Parts batch = TakeAt(kBatch * 3);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].entry, last);
}

TEST_F(OneLane, TheOthersOfItsBatchAreRun) {
  const EntryPtr late = Queue(kBatch * 4, 2), next = Queue(kBatch * 8, 2);
  const Parts batch = TakeAt(kBatch * 3.5);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].entry, next);
  EXPECT_EQ(expired_, Entries{late});
}

// What ran last is long ago, and the machine may be faster now.
TEST_F(OneLane, AnOldEstimateDropsNothing) {
  const absl::Duration later = absl::Seconds(2);
  const EntryPtr waits = Queue(later + kBatch / 2);
  EXPECT_EQ(TakeAt(later).size(), 1u);
  EXPECT_TRUE(expired_.empty());
}

// FUSEBLOCK_SEED=N runs that schedule alone.
TEST(Scheduler, AnySchedule) {
  const char* only = std::getenv("FUSEBLOCK_SEED");
  const uint32_t first = only == nullptr ? 1 : static_cast<uint32_t>(std::atoi(only));
  const uint32_t last = only == nullptr ? kSchedules : first;
  for (uint32_t seed = first; seed <= last && !HasFailure(); ++seed) {
    SCOPED_TRACE("FUSEBLOCK_SEED=" + std::to_string(seed));
    World(seed).Run();
  }
}

// While tenants wait for one block, none is served more than four batches beyond another, however
// their requests are cut and however many lanes there are.
TEST(Scheduler, NoTenantIsServedBeyondItsBound) {
  constexpr int64_t kBatch = 32;
  constexpr int kTenants = 4;
  for (uint32_t seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    FairQueue queue;
    BatchQueue block(kBatch);
    // Each tenant's own kind of request: tokens up to this, with some longer than a batch.
    int64_t largest[kTenants], waiting[kTenants] = {}, served[kTenants] = {};
    for (int64_t& tokens : largest) tokens = int64_t{1} << (random() % 7);
    int64_t most[kTenants][kTenants] = {};
    std::vector<Parts> lanes(1 + seed % 3);
    const size_t joins = random() % 200;  // when the last tenant comes
    for (size_t step = 0; step < 600; ++step) {
      const int tenants = kTenants - (step < joins ? 1 : 0);
      for (int t = 0; t < tenants; ++t) {
        while (waiting[t] < 4 * kBatch) {
          auto entry = std::make_shared<Entry>();
          entry->queue = &block;
          entry->request.tokens = 1 + static_cast<int64_t>(random()) % largest[t];
          entry->request.tenant = std::string(1, static_cast<char>('a' + t));
          entry->request.priority = static_cast<int>(random() % 4);
          waiting[t] += entry->request.tokens;
          queue.Push(std::move(entry));
        }
      }
      Parts& lane = lanes[step % lanes.size()];
      for (const Part& part : lane) queue.Finished(part.entry.get());
      lane.clear();
      queue.Take([](const BatchQueue&) { return true; }, &lane);
      for (const Part& part : lane) {
        served[part.entry->request.tenant[0] - 'a'] += part.rows;
        waiting[part.entry->request.tenant[0] - 'a'] -= part.rows;
      }
      if (step == joins) std::fill_n(&most[0][0], kTenants * kTenants, 0);
      if (step == joins) std::fill_n(served, kTenants, 0);
      for (int a = 0; a < tenants; ++a) {
        for (int b = 0; b < tenants; ++b) {
          most[a][b] = std::max(most[a][b], served[a] - served[b]);
          EXPECT_LE(most[a][b] + most[b][a], 4 * kBatch) << a << " and " << b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock
