#include "server/engine/queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

namespace fuseblock {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

bool Any(const BatchQueue&) { return true; }

// A queue of one or more blocks on a clock of its own.
class QueueTest : public ::testing::Test {
 protected:
  Entry* Push(BatchQueue& block, int64_t tokens, const std::string& tenant = "", int priority = 1,
              absl::Time deadline = absl::InfiniteFuture()) {
    auto entry = std::make_shared<Entry>();
    entry->id = ++last_id_;
    entry->queue = &block;
    entry->request.tokens = tokens;
    entry->request.tenant = tenant;
    entry->request.priority = priority;
    entry->bytes = tokens * 10;
    entry->cost = absl::Milliseconds(tokens);
    entry->deadline = deadline;
    Entry* raw = entry.get();
    queue_.Push(std::move(entry));
    return raw;
  }

  // The ids of the next batch.
  std::vector<uint64_t> Take(FairQueue::Eligible eligible = Any, absl::Time now = kStart) {
    for (const EntryPtr& entry : queue_.TakeExpired(now)) expired_.push_back(entry->id);
    running_.clear();
    queue_.Take(eligible, &running_);
    queue_.Settle(running_);
    std::vector<uint64_t> ids;
    for (const Part& part : running_) ids.push_back(part.entry->id);
    return ids;
  }

  using Ids = std::vector<uint64_t>;
  FairQueue queue_;
  uint64_t last_id_ = 0;
  Ids expired_;
  Parts running_;  // the newest batch
};

TEST_F(QueueTest, InOrderOfArrivalUpToTheTokenLimit) {
  BatchQueue block(10);
  for (const int64_t tokens : {4, 4, 2, 1}) Push(block, tokens);
  EXPECT_EQ(Take(), (Ids{1, 2, 3}));
  EXPECT_EQ(Take(), (Ids{4}));
  EXPECT_EQ(Take(), (Ids{}));
  EXPECT_TRUE(queue_.empty());
}

TEST_F(QueueTest, OneMaximumBetweenTwoSmallOnes) {
  BatchQueue block(10);
  for (const int64_t tokens : {1, 10, 1}) Push(block, tokens);
  EXPECT_EQ(Take(), (Ids{1}));
  EXPECT_EQ(Take(), (Ids{2}));
  EXPECT_EQ(Take(), (Ids{3}));
}

TEST_F(QueueTest, RequestsWithoutTokensShareAnyBatch) {
  BatchQueue block(4);
  for (const int64_t tokens : {0, 4, 0, 0}) Push(block, tokens);
  EXPECT_EQ(Take(), (Ids{1, 2, 3, 4}));
}

TEST_F(QueueTest, UrgentFirstWithinATenant) {
  BatchQueue block(1);
  Push(block, 1, "a", 3);
  Push(block, 1, "a", 1);
  Push(block, 1, "a", 0);
  Push(block, 1, "a", 1);
  EXPECT_EQ(Take(), (Ids{3}));
  EXPECT_EQ(Take(), (Ids{2}));
  EXPECT_EQ(Take(), (Ids{4}));
  EXPECT_EQ(Take(), (Ids{1}));
}

TEST_F(QueueTest, UrgencyCountsAcrossBlocks) {
  BatchQueue one(10), other(10);
  Push(one, 1, "a", 2);
  Push(other, 1, "a", 0);
  EXPECT_EQ(Take(), (Ids{2}));
}

TEST_F(QueueTest, BlocksDoNotShareABatchAndTheOldestLeads) {
  BatchQueue one(10), other(10);
  Push(one, 1);
  Push(other, 1);
  Push(one, 1);
  EXPECT_EQ(Take(), (Ids{1, 3}));
  EXPECT_EQ(Take(), (Ids{2}));
}

TEST_F(QueueTest, OnlyFromEligibleBlocks) {
  BatchQueue one(10), other(10);
  Push(one, 1);
  Push(other, 1);
  EXPECT_EQ(Take([&](const BatchQueue& q) { return &q == &other; }), (Ids{2}));
  EXPECT_EQ(Take([](const BatchQueue&) { return false; }), (Ids{}));
  EXPECT_EQ(queue_.tokens(), 1);
}

TEST_F(QueueTest, ASecondTenantDoesNotWaitBehindAFlood) {
  BatchQueue block(4);
  for (int i = 0; i < 100; ++i) Push(block, 1, "flood");
  EXPECT_EQ(Take().size(), 4u);
  Push(block, 1, "guest");
  const Ids next = Take();
  EXPECT_NE(std::find(next.begin(), next.end(), 101u), next.end());
}

TEST_F(QueueTest, TokensAreSharedEvenlyHoweverTheRequestsAreCut) {
  BatchQueue one(8), other(8);
  std::map<std::string, int64_t> served;
  std::map<uint64_t, std::pair<std::string, int64_t>> what;
  const auto keep_full = [&] {
    while (queue_.tokens() < 400) {
      what[Push(one, 8, "large")->id] = {"large", 8};
      for (int i = 0; i < 8; ++i) what[Push(i % 2 ? one : other, 1, "small")->id] = {"small", 1};
    }
  };
  for (int batch = 0; batch < 400; ++batch) {
    keep_full();
    for (const uint64_t id : Take()) served[what[id].first] += what[id].second;
  }
  EXPECT_NEAR(static_cast<double>(served["large"]) / static_cast<double>(served["small"]), 1, 0.1);
}

TEST_F(QueueTest, ATenantThatComesBackHasNoClaimOnThePast) {
  BatchQueue block(1);
  Push(block, 1, "late");
  EXPECT_EQ(Take(), (Ids{1}));
  for (int i = 0; i < 100; ++i) Push(block, 1, "steady");
  for (int i = 0; i < 50; ++i) Take();
  for (int i = 0; i < 20; ++i) Push(block, 1, "late");
  int late = 0;
  for (int i = 0; i < 20; ++i) late += Take()[0] > 101 ? 1 : 0;
  EXPECT_NEAR(late, 10, 1);
}

TEST_F(QueueTest, NorInTheFirstBatchAfterIt) {
  BatchQueue block(16);
  Push(block, 1, "steady");
  Push(block, 1, "late");
  Take();
  for (int i = 0; i < 320; ++i) Push(block, 1, "steady");
  for (int batch = 0; batch < 10; ++batch) Take();
  for (int i = 0; i < 32; ++i) Push(block, 1, "late");
  Take();
  int late = 0;
  for (const Part& part : running_) late += part.entry->request.tenant == "late" ? 1 : 0;
  EXPECT_NEAR(late, 8, 1);
}

TEST_F(QueueTest, AnUnnamedTenantIsATenant) {
  BatchQueue block(1);
  Push(block, 1, "");
  Push(block, 1, "a");
  Push(block, 1, "");
  EXPECT_EQ(Take(), (Ids{1}));
  EXPECT_EQ(Take(), (Ids{2}));
  EXPECT_EQ(Take(), (Ids{3}));
}

TEST_F(QueueTest, MoreTenantsThanAreToldApart) {
  BatchQueue block(4);
  const int tenants = FairQueue::kTenantsMax * 3;
  for (int i = 0; i < tenants; ++i) Push(block, 1, "tenant" + std::to_string(i));
  std::set<uint64_t> ids;
  while (!queue_.empty()) {
    for (const uint64_t id : Take()) EXPECT_TRUE(ids.insert(id).second);
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(tenants));
}

TEST_F(QueueTest, ExpiredRequestsNeverLeaveInABatch) {
  BatchQueue block(10);
  Push(block, 1, "", 1, kStart + absl::Milliseconds(5));
  Push(block, 1, "", 1, kStart + absl::Milliseconds(20));
  Push(block, 1);
  EXPECT_EQ(queue_.NextDeadline(), kStart + absl::Milliseconds(5));
  EXPECT_EQ(Take(Any, kStart + absl::Milliseconds(5)), (Ids{2, 3}));
  EXPECT_EQ(expired_, (Ids{1}));
  EXPECT_EQ(queue_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(QueueTest, ALongRequestLeavesInChunksAndTheOthersGoBetween) {
  BatchQueue block(10);
  Push(block, 25);
  EXPECT_EQ(Take(), (Ids{1}));
  const Parts chunk = running_;
  EXPECT_EQ(chunk[0].first_row, 0);
  EXPECT_EQ(chunk[0].rows, 10);
  Push(block, 1);
  Push(block, 1);
  EXPECT_EQ(Take(), (Ids{2, 3})) << "while a lane has a chunk, the others go first";
  EXPECT_EQ(Take(), (Ids{1})) << "and if there are none, another lane takes the next one";
  EXPECT_EQ(running_[0].first_row, 10);
  Push(block, 1);
  queue_.Finished(chunk[0].entry.get());
  queue_.Finished(chunk[0].entry.get());
  Push(block, 1);
  EXPECT_EQ(Take(), (Ids{4, 1, 5})) << "at the back of its line when its chunks are done";
  EXPECT_EQ(running_[1].first_row, 20);
  EXPECT_EQ(running_[1].rows, 5);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.tokens(), 0);
  EXPECT_EQ(queue_.bytes(), 0);
  EXPECT_EQ(queue_.Backlog(), absl::ZeroDuration());
}

TEST_F(QueueTest, WhatStartsOverGoesBackWhole) {
  BatchQueue block(10);
  Push(block, 25, "", 1, kStart + absl::Seconds(1));
  Take();
  Take();
  EXPECT_EQ(queue_.tokens(), 5);
  queue_.StartOver(running_[0].entry);
  EXPECT_EQ(queue_.tokens(), 25);
  for (const int64_t first : {0, 10, 20}) {
    EXPECT_EQ(Take(), (Ids{1}));
    EXPECT_EQ(running_[0].first_row, first);
    EXPECT_EQ(running_[0].round, 1);
  }
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.NextDeadline(), absl::InfiniteFuture());
}

// The one whose request does not fit is not left behind for the sake of a fuller batch.
TEST_F(QueueTest, FillingABatchUpDoesNotOutrunWhoeverDoesNotFit) {
  BatchQueue block(10);
  std::map<std::string, int64_t> served;
  for (int batch = 0; batch < 200; ++batch) {
    while (queue_.tokens() < 300) {
      Push(block, 1, "uneven");
      Push(block, 10, "uneven");
      for (int i = 0; i < 11; ++i) Push(block, 1, "filler");
    }
    Take();
    for (const Part& part : running_) served[part.entry->request.tenant] += part.rows;
  }
  EXPECT_NEAR(static_cast<double>(served["uneven"]) / static_cast<double>(served["filler"]), 1,
              0.1);
}

// A tenant that waits for a device that is slow or gone does not give others a claim on what is
// served elsewhere.
TEST_F(QueueTest, WhoWaitsElsewhereHoldsNoLevelDown) {
  BatchQueue slow(10), fast(10);
  const auto is_fast = [&](const BatchQueue& queue) { return &queue == &fast; };
  Push(slow, 1, "elsewhere");
  for (int i = 0; i < 2000; ++i) Push(fast, 1, "old");
  for (int batch = 0; batch < 100; ++batch) Take(is_fast);
  for (int i = 0; i < 500; ++i) Push(fast, 1, "new");
  int64_t old = 0;
  for (int batch = 0; batch < 20; ++batch) {
    Take(is_fast);
    for (const Part& part : running_) old += part.entry->request.tenant == "old" ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(old), 100, 2 * 10);
}

// What nobody else could use is not held against whoever used it.
TEST_F(QueueTest, ANewTenantHasNoClaimOnWhatAnotherFilledUp) {
  BatchQueue block(10);
  for (int batch = 0; batch < 100; ++batch) {
    Push(block, 1, "little");
    while (queue_.tokens() < 30) Push(block, 1, "filler");
    Take();
  }
  int64_t filler = 0;
  for (int batch = 0; batch < 20; ++batch) {
    while (queue_.tokens() < 60) {
      Push(block, 1, "filler");
      Push(block, 1, "new");
    }
    Take();
    for (const Part& part : running_) filler += part.entry->request.tenant == "filler" ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(filler), 100, 20);
}

TEST_F(QueueTest, AheadIsOnesOwnAndAsMuchOfOthers) {
  BatchQueue block(10);
  for (int i = 0; i < 10; ++i) Push(block, 5, "flood");
  EXPECT_EQ(queue_.Ahead("guest", 1, 1), absl::ZeroDuration());
  Push(block, 3, "guest", 1);
  Push(block, 4, "guest", 3);
  EXPECT_EQ(queue_.Ahead("guest", 1, 1), absl::Milliseconds(6));   // 3 own + 3 of the flood
  EXPECT_EQ(queue_.Ahead("guest", 3, 1), absl::Milliseconds(14));  // 7 + 7
  EXPECT_EQ(queue_.Ahead("flood", 1, 1), absl::Milliseconds(57));  // 50 + 7
  EXPECT_EQ(queue_.Backlog(), absl::Milliseconds(57));
}

TEST_F(QueueTest, OfALongRequestOneChunkIsAheadOfAShortOne) {
  BatchQueue block(10);
  Push(block, 35, "a");
  Push(block, 4, "a");
  EXPECT_EQ(queue_.Ahead("a", 1, 1), absl::Milliseconds(14));
  EXPECT_EQ(queue_.Ahead("a", 1, 2), absl::Milliseconds(28));
  EXPECT_EQ(queue_.Ahead("a", 1, 9), absl::Milliseconds(39));
  EXPECT_EQ(queue_.Backlog(), absl::Milliseconds(39));
  for (int i = 0; i < 3; ++i) Take();
  EXPECT_EQ(queue_.Ahead("a", 1, 1), absl::Milliseconds(10));
  EXPECT_EQ(queue_.Backlog(), absl::Milliseconds(15));
}

}  // namespace
}  // namespace fuseblock
