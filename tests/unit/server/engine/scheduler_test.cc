// What the scheduler decides of a request that may be too late, and how tenants share one block.
#include "server/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/reason.h"

namespace fuseblock {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

// One block on one lane, 10 ms a batch of up to 4 tokens.
class OneLane : public ::testing::Test {
 protected:
  OneLane() { cost_.Observe(4, kBatch, kStart); }

  absl::Status Admit(absl::Duration deadline, absl::Duration wait, int64_t tokens = 4,
                     const std::string& tenant = "") {
    entry_ = std::make_shared<Entry>();
    entry_->queue = &block_;
    entry_->request.tenant = tenant;
    entry_->request.tokens = tokens;
    entry_->submitted = kStart;
    entry_->deadline = kStart + deadline;
    return scheduler_.Admit(entry_, {1, wait, &cost_}, kStart);
  }
  EntryPtr Queue(absl::Duration deadline, int64_t tokens = 4, const std::string& tenant = "") {
    EXPECT_TRUE(Admit(deadline, absl::ZeroDuration(), tokens, tenant).ok());
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
  Engine::RequestId last_id_ = 0;  // of those that were queued without Admit
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

// Else tenants whose requests come too late would wait for others to be served as much as they were
// not, and be later still.
TEST_F(OneLane, WhatIsNotRunCostsItsTenantNothing) {
  Entries late;
  for (int i = 0; i < 3; ++i) late.push_back(Queue(kBatch * 6, 4, "a"));
  const EntryPtr next = Queue(kBatch * 100, 4, "a");
  for (int i = 0; i < 3; ++i) Queue(kBatch * 100, 4, "b");
  const Parts first = TakeAt(kBatch * 5.1);
  EXPECT_EQ(expired_, late);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].entry, next) << "it is the oldest of those that were served nothing";
  for (const char* tenant : {"b", "b"}) {
    const Parts batch = TakeAt(kBatch * 6);
    ASSERT_EQ(batch.size(), 1u);
    EXPECT_EQ(batch[0].entry->request.tenant, tenant);
  }
}

TEST_F(OneLane, ATenantOfWhichHalfComesTooLateGetsItsShareOfTheRest) {
  const std::string a = "a", b = "b";
  const auto queue = [this](const std::string& tenant, absl::Duration deadline) {
    auto entry = std::make_shared<Entry>();
    entry->id = ++last_id_;
    entry->queue = &block_;
    entry->request.tokens = 4;
    entry->request.tenant = tenant;
    entry->deadline = kStart + deadline;
    scheduler_.Queue(entry);
  };
  int served[2] = {};  // batches, of a and of b
  size_t dropped = 0;
  for (int round = 0; round < 100; ++round) {
    queue(a, kBatch * 1.5);
    for (const std::string& tenant : {a, b}) queue(tenant, kBatch * 100);
    const Parts batch = TakeAt(kBatch);
    ASSERT_EQ(batch.size(), 1u);
    ++served[batch[0].entry->request.tenant == b];
    dropped += expired_.size();
  }
  EXPECT_GE(dropped, 40u);
  EXPECT_NEAR(served[0], served[1], 4);
}

// What ran last is long ago, and the machine may be faster now.
TEST_F(OneLane, AnOldEstimateDropsNothing) {
  const absl::Duration later = absl::Seconds(2);
  const EntryPtr waits = Queue(later + kBatch / 2);
  EXPECT_EQ(TakeAt(later).size(), 1u);
  EXPECT_TRUE(expired_.empty());
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
      queue.Settle(lane);
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
