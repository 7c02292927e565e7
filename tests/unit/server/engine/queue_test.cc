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
    auto entry = std::make_unique<Entry>();
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
    FairQueue::Entries batch, expired;
    queue_.Take(eligible, now, &batch, &expired);
    std::vector<uint64_t> ids;
    for (const auto& entry : batch) ids.push_back(entry->id);
    for (const auto& entry : expired) expired_.push_back(entry->id);
    return ids;
  }

  using Ids = std::vector<uint64_t>;
  FairQueue queue_;
  uint64_t last_id_ = 0;
  Ids expired_;
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

TEST_F(QueueTest, AheadIsOnesOwnAndAsMuchOfOthers) {
  BatchQueue block(10);
  for (int i = 0; i < 10; ++i) Push(block, 5, "flood");
  EXPECT_EQ(queue_.Ahead("guest", 1), absl::ZeroDuration());
  Push(block, 3, "guest", 1);
  Push(block, 4, "guest", 3);
  EXPECT_EQ(queue_.Ahead("guest", 1), absl::Milliseconds(6));   // 3 own + 3 of the flood
  EXPECT_EQ(queue_.Ahead("guest", 3), absl::Milliseconds(14));  // 7 + 7
  EXPECT_EQ(queue_.Ahead("flood", 1), absl::Milliseconds(57));  // 50 + 7
  EXPECT_EQ(queue_.Backlog(), absl::Milliseconds(57));
}

// Any schedule of pushes, batches, cancellations and expiries: every request leaves exactly once,
// never in a batch that is too large or mixed or after its deadline, and the sums are right all the
// time.
TEST_F(QueueTest, RandomSchedules) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<int>(random() % n); };
    FairQueue queue;
    BatchQueue blocks[3] = {BatchQueue(16), BatchQueue(32), BatchQueue(16)};
    std::map<Entry*, int64_t> waiting;  // to tokens
    absl::Time now = kStart;
    uint64_t id = 0;
    size_t left = 0;
    const auto leaves = [&](const std::unique_ptr<Entry>& entry) {
      ASSERT_EQ(waiting.erase(entry.get()), 1u);
      ++left;
    };
    for (int step = 0; step < 200; ++step) {
      now += absl::Milliseconds(below(3));
      const int action = below(10);
      if (action < 6) {
        auto entry = std::make_unique<Entry>();
        entry->id = ++id;
        entry->queue = &blocks[below(3)];
        entry->request.tokens = below(17);
        entry->request.tenant = std::string(1, static_cast<char>('a' + below(4)));
        entry->request.priority = below(4);
        entry->bytes = entry->request.tokens * 2;
        entry->cost = absl::Microseconds(entry->request.tokens + 1);
        if (below(2)) entry->deadline = now + absl::Milliseconds(below(20));
        waiting[entry.get()] = entry->request.tokens;
        queue.Push(std::move(entry));
      } else if (action < 8) {
        FairQueue::Entries batch, expired;
        queue.Take([&](const BatchQueue& q) { return &q != &blocks[step % 3]; }, now, &batch,
                   &expired);
        int64_t tokens = 0;
        std::map<std::pair<std::string, int>, uint64_t> last;
        for (const auto& entry : batch) {
          EXPECT_EQ(entry->queue, batch[0]->queue);
          EXPECT_NE(entry->queue, &blocks[step % 3]);
          EXPECT_GT(entry->deadline, now);
          uint64_t& before = last[{entry->request.tenant, entry->request.priority}];
          EXPECT_LT(before, entry->id) << "out of order within a tenant's priority";
          before = entry->id;
          tokens += entry->request.tokens;
          leaves(entry);
        }
        if (!batch.empty()) {
          EXPECT_LE(tokens, batch[0]->queue == &blocks[1] ? 32 : 16);
        }
        for (const auto& entry : expired) {
          EXPECT_LE(entry->deadline, now);
          leaves(entry);
        }
      } else if (action < 9 && !waiting.empty()) {
        auto victim = std::next(waiting.begin(), below(static_cast<uint32_t>(waiting.size())));
        leaves(queue.Remove(victim->first));
      } else {
        for (const auto& entry : queue.TakeExpired(now)) leaves(entry);
      }
      int64_t tokens = 0;
      for (const auto& [entry, count] : waiting) tokens += count;
      ASSERT_EQ(queue.tokens(), tokens);
      ASSERT_EQ(queue.bytes(), tokens * 2);
      ASSERT_EQ(queue.Backlog(), absl::Microseconds(tokens + static_cast<int64_t>(waiting.size())));
      ASSERT_EQ(queue.empty(), waiting.empty());
    }
    for (const auto& entry : queue.TakeAll(Any)) leaves(entry);
    EXPECT_TRUE(waiting.empty());
    EXPECT_EQ(left, id);
  }
}

}  // namespace
}  // namespace fuseblock
