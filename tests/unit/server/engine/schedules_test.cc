// The scheduler on a simulated clock, before simulated lanes: thousands of seeded schedules of
// arrivals, batches, failures, devices that are lost or hang, batches that the CPU takes over,
// requests that start over, cancellations, deadlines and slow readers, each checked step by step
// for what must hold whatever happens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/scheduler.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

constexpr int kSchedules = 4000;
constexpr int kCpuDevice = 2;
constexpr int64_t kBatchMax = 32;                               // of any block
constexpr absl::Duration kWatchdog = absl::Microseconds(1500);  // the longest batch takes 400
const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

// What the test knows of a request, apart from the scheduler.
struct Seen {
  EntryPtr entry;
  int64_t arrival = 0;   // when it last came to the queue
  bool started = false;  // a part of it left since then
  bool at_once = false;
  int answers = 0;
  int64_t served = 0;  // tokens of it that left the queue since it last came there
  // By other requests of its line: parts of theirs that began while it waited.
  std::map<Engine::RequestId, int> passed_by;
};

// What was seen over all schedules, so that none of it is left out unnoticed.
struct Met {
  int handed_over = 0, hung = 0, lost = 0, started_over = 0, ended_in_takeover = 0, stranded = 0,
      left_out = 0;
};

// A server with two GPUs and the CPU, which takes over what fails on them unless the policy is to
// refuse.
class World {
 public:
  World(uint32_t seed, Met& met) : met_(met), random_(seed), falls_back_(seed % 4 != 0) {
    for (int64_t n = 1; n <= 32; n *= 2) cost_.Observe(n, absl::Microseconds(50 + n * 10), now_);
  }

  void Run() {
    for (int step = 0; step < 150 && !Failed(); ++step) {
      const int action = Below(20);
      if (action < 9) Arrive();
      if (action == 9) Cancel();
      if (action == 10) ReleaseOne();
      if (action == 11) SetAvailable(Below(3), Below(3) > 0);
      if (action == 12 && Below(12) == 0) LoseDevice(Below(2));
      if (action >= 12) now_ += absl::Microseconds(Below(300));
      if (action % 3 == 0) Expire();
      FinishLanes(now_);
      GiveUpLanes(now_);
      FillLanes();
      CheckSums();
    }
    calm_ = true;
    for (int device = 0; device < 3; ++device) SetAvailable(device, true);
    FillLanes();
    while ((scheduler_.requests() > 0 || !takeovers_.empty()) && !Failed()) {
      now_ += absl::Milliseconds(1);
      FinishLanes(now_);
      GiveUpLanes(now_);
      FillLanes();
    }
    GiveUpLanes(absl::InfiniteFuture());  // of which nothing is wanted any more
    while (!takeovers_.empty() || AnyRuns()) {
      FinishLanes(absl::InfiniteFuture());
      FillLanes();
    }
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
    absl::Time until;       // infinite: it hangs
    absl::Time overdue_at;  // when the engine gives it up
    absl::Time back_at = absl::InfinitePast();
  };
  // How far two tenants' service was apart, at least and at most, while both waited for a block.
  struct Apart {
    bool both_wait = false;
    int64_t least = 0, most = 0;
  };

  static bool Failed() { return ::testing::Test::HasFailure(); }
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  static DeviceType TypeOf(int device) {
    return device == kCpuDevice ? DeviceType::kCpu : DeviceType::kCuda;
  }

  // As WhoServes: the GPUs while there is one, else the CPU.
  bool Takes(int device) const {
    const bool any_gpu = available_[0] || available_[1];
    if (!falls_back_ && device == kCpuDevice) return false;
    return available_[device] && (TypeOf(device) == DeviceType::kCuda) == any_gpu;
  }
  bool AnyTakes() const { return Takes(0) || Takes(1) || Takes(kCpuDevice); }
  bool AnyRuns() const {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [](const Lane& lane) { return !lane.parts.empty(); });
  }

  void Arrive() {
    ++arrived_;
    if (!AnyTakes()) {
      ++refused_;
      return;
    }
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
      CompareTenants();
      return;
    }
    Start(first, {scheduler_.StartAtOnce(entry)});
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
    Entries expired = scheduler_.TakeExpired(now_);
    for (const Parts& parts : takeovers_) scheduler_.ExpireTaken(parts, now_, &expired);
    for (const EntryPtr& entry : expired) {
      EXPECT_LE(entry->deadline, now_);
      Answer(*entry, false);
    }
  }

  // A device whose lane hangs, or that is lost, does not come back.
  void SetAvailable(int device, bool available) {
    for (const Lane& lane : lanes_) {
      if (lane.device == device && lane.back_at > now_) return;
    }
    available_[device] = available && !lost_[device];
    if (AnyTakes()) return;
    for (const EntryPtr& entry : scheduler_.TakeAll([](const BatchQueue&) { return true; })) {
      ++met_.stranded;
      Answer(*entry, false);
    }
    EXPECT_TRUE(scheduler_.queue().empty());
  }

  // What runs on it fails when it would have been done.
  void LoseDevice(int device) {
    ++met_.lost;
    lost_[device] = true;
    SetAvailable(device, false);
  }

  void ReleaseOne() {
    if (!held_.empty()) held_.erase(held_.begin() + Below(static_cast<int>(held_.size())));
  }

  // A refusal, or an answer whose reader may be slow.
  void Answer(Entry& entry, bool ok) {
    EXPECT_TRUE(entry.ended);
    EXPECT_EQ(++seen_[entry.id].answers, 1) << "request " << entry.id;
    CompareTenants();
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

  void Start(Lane& lane, Parts parts) {
    CheckBatch(parts);
    lane.parts = std::move(parts);
    const bool gpu = lane.device != kCpuDevice;
    const bool hangs = gpu && !calm_ && !lost_[lane.device] && Below(40) == 0;
    met_.hung += hangs;
    lane.until = hangs ? absl::InfiniteFuture() : now_ + absl::Microseconds(1 + Below(400));
    lane.overdue_at = gpu ? now_ + kWatchdog : absl::InfiniteFuture();
  }

  void FillLanes() {
    for (Lane& lane : lanes_) {
      if (!lane.parts.empty() || lane.back_at > now_) continue;
      if (lane.device == kCpuDevice) TakeOver(lane);
      if (!lane.parts.empty() || !Takes(lane.device)) continue;
      Entries expired;
      Parts parts;
      scheduler_.Take([](const BatchQueue&) { return true; },
                      [this](const BatchQueue&) -> const CostModel& { return cost_; }, now_, &parts,
                      &expired);
      for (const Part& part : parts) CountServed(*part.entry);
      CompareTenants();
      for (const EntryPtr& entry : expired) {
        EXPECT_LT(entry->deadline, now_ + cost_.Certain(entry->queue->batch_tokens_max(), now_));
        met_.left_out += entry->deadline > now_;
        Answer(*entry, false);
      }
      EXPECT_TRUE(!parts.empty() || scheduler_.queue().empty()) << "a lane idles";
      if (parts.empty()) continue;
      CheckOrder(parts);
      CheckInTime(parts);
      Start(lane, std::move(parts));
    }
  }

  // The CPU runs what failed elsewhere before anything else: what is still wanted of it.
  void TakeOver(Lane& lane) {
    while (lane.parts.empty() && !takeovers_.empty()) {
      const Parts parts = std::move(takeovers_.front());
      takeovers_.pop_front();
      Entries expired;
      scheduler_.ExpireTaken(parts, now_, &expired);
      for (const EntryPtr& entry : expired) Answer(*entry, false);
      const std::vector<bool> wanted = scheduler_.StillWanted(parts);
      Parts kept;
      for (size_t p = 0; p < parts.size(); ++p) {
        if (wanted[p]) kept.push_back(parts[p]);
      }
      met_.ended_in_takeover += static_cast<int>(parts.size() - kept.size());
      if (!kept.empty()) Start(lane, std::move(kept));
    }
  }

  // As the engine: the CPU takes over what a GPU failed on, or its requests fail.
  void Fail(Lane& lane) {
    const Parts parts = std::exchange(lane.parts, {});
    if (lane.device != kCpuDevice && falls_back_) {
      ++met_.handed_over;
      takeovers_.push_back(parts);
      return;
    }
    for (const Part& part : parts) {
      PartResult result;
      result.status = MakeError(Reason::kDeviceLost, "failed");
      Finish(part, std::move(result));
    }
  }

  void GiveUpLanes(absl::Time now) {
    for (Lane& lane : lanes_) {
      if (lane.parts.empty() || lane.until < absl::InfiniteFuture() || lane.overdue_at > now) {
        continue;
      }
      SetAvailable(lane.device, false);
      lane.back_at = now_ + absl::Microseconds(Below(5000));
      Fail(lane);
    }
  }

  void FinishLanes(absl::Time until) {
    for (;;) {
      const auto next = std::min_element(lanes_.begin(), lanes_.end(), [](auto& a, auto& b) {
        return std::pair(a.parts.empty(), a.until) < std::pair(b.parts.empty(), b.until);
      });
      if (next->parts.empty() || next->until > until || next->until == absl::InfiniteFuture()) {
        return;
      }
      if (lost_[next->device] || Below(25) == 0) {
        Fail(*next);
        continue;
      }
      const Parts parts = std::exchange(next->parts, {});
      for (const Part& part : parts) {
        PartResult result;
        result.device = {TypeOf(next->device), 0};
        Finish(part, std::move(result));
      }
    }
  }

  void Finish(const Part& part, PartResult result) {
    const int round = part.entry->round;
    if (scheduler_.Finish(part, std::move(result), now_)) {
      Answer(*part.entry, part.entry->results.front().status.ok());
    }
    if (part.entry->round == round) return;
    ++met_.started_over;
    Seen& seen = seen_[part.entry->id];
    seen.started = false;
    seen.served = 0;
    seen.passed_by.clear();
    seen.arrival = ++arrivals_;
    CompareTenants();
  }

  bool SameLine(const Entry& a, const Entry& b) const {
    return a.queue == b.queue && a.request.tenant == b.request.tenant &&
           a.request.priority == b.request.priority;
  }

  // Of every batch that a lane begins, one that was taken over, too.
  void CheckBatch(const Parts& parts) {
    int64_t tokens = 0;
    for (const Part& part : parts) {
      const Entry& entry = *part.entry;
      tokens += part.rows;
      EXPECT_EQ(entry.queue, parts[0].entry->queue);
      EXPECT_GT(entry.deadline, now_) << "launched after it had expired";
      EXPECT_EQ(seen_[entry.id].answers, 0) << "launched after it had ended";
      EXPECT_EQ(part.round, entry.round) << "launched after it had started over";
    }
    EXPECT_LE(tokens, parts[0].entry->queue->batch_tokens_max());
  }

  void CheckInTime(const Parts& parts) {
    int64_t tokens = 0;
    for (const Part& part : parts) tokens += part.rows;
    for (const Part& part : parts) {
      EXPECT_GE(part.entry->deadline, now_ + cost_.Certain(tokens, now_)) << "will be too late";
    }
  }

  // Of those that leave the queue.
  void CheckOrder(const Parts& parts) {
    for (const Part& part : parts) {
      const Entry& entry = *part.entry;
      Seen& seen = seen_[entry.id];
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
  }

  static int TenantOf(const Entry& entry) { return entry.request.tenant[0] - 'a'; }

  // What a batch leaves out because it would be too late was not served.
  void CountServed(const Entry& entry) {
    int64_t& counted = seen_[entry.id].served;
    served_[TenantOf(entry)] += entry.taken - counted;
    counted = entry.taken;
  }

  // Between any two events: how far apart the tenants are that wait for one block.
  void CompareTenants() {
    bool waits[3][3] = {};  // tenant, block
    for (const auto& [id, seen] : seen_) {
      if (seen.answers > 0 || !FairQueue::Waits(*seen.entry)) continue;
      waits[TenantOf(*seen.entry)][seen.entry->queue - blocks_] = true;
    }
    for (int a = 0; a < 3; ++a) {
      for (int b = 0; b < a; ++b) {
        for (int block = 0; block < 3; ++block) {
          Apart& apart = apart_[a][b][block];
          const int64_t now = served_[a] - served_[b];
          const bool waited = std::exchange(apart.both_wait, waits[a][block] && waits[b][block]);
          if (!waited) apart.least = apart.most = now;
          apart.least = std::min(apart.least, now);
          apart.most = std::max(apart.most, now);
          EXPECT_LE(apart.most - apart.least, 4 * kBatchMax) << a << " and " << b;
        }
      }
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

  Met& met_;
  std::mt19937 random_;
  const bool falls_back_;
  bool calm_ = false;  // nothing hangs any more
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
  bool lost_[3] = {};
  std::vector<Lane> lanes_ = {{0, {}, {}, {}}, {0, {}, {}, {}}, {1, {}, {}, {}}, {2, {}, {}, {}}};
  std::deque<Parts> takeovers_;
  int64_t served_[3] = {};  // by tenant
  Apart apart_[3][3][3];
  std::map<Engine::RequestId, Seen> seen_;
  int64_t arrivals_ = 0;
  std::vector<Ticket> held_;
  int arrived_ = 0, refused_ = 0;
};

// FUSEBLOCK_SEED=N runs that schedule alone.
TEST(Scheduler, AnySchedule) {
  const char* only = std::getenv("FUSEBLOCK_SEED");
  const uint32_t first = only == nullptr ? 1 : static_cast<uint32_t>(std::atoi(only));
  const uint32_t last = only == nullptr ? kSchedules : first;
  Met met;
  for (uint32_t seed = first; seed <= last && !HasFailure(); ++seed) {
    SCOPED_TRACE("FUSEBLOCK_SEED=" + std::to_string(seed));
    World(seed, met).Run();
  }
  if (only != nullptr) return;
  for (const int count : {met.handed_over, met.hung, met.lost, met.started_over,
                          met.ended_in_takeover, met.stranded, met.left_out}) {
    EXPECT_GT(count, kSchedules / 100) << "the schedules no longer reach what they are for";
  }
}

}  // namespace
}  // namespace fuseblock
