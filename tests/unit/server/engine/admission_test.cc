#include "server/engine/admission.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include "server/reason.h"

namespace fuseblock {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

Arrival Of(int64_t tokens, int64_t bytes) {
  Arrival arrival;
  arrival.tokens = tokens;
  arrival.bytes = bytes;
  arrival.now = kNow;
  return arrival;
}

std::shared_ptr<Admission> Make(int64_t tokens, int64_t bytes, int64_t request_tokens) {
  return std::make_shared<Admission>(AdmissionLimits{{tokens, bytes}, request_tokens, {}, {}});
}

Reason RefusalOf(Admission& admission, const Arrival& arrival) {
  const auto ticket = admission.Admit(arrival);
  EXPECT_FALSE(ticket.ok());
  return ticket.ok() ? Reason::kInternal : ReasonOf(ticket.status());
}

TEST(Admission, RefusesExactlyWhatDoesNotFit) {
  const auto admission = Make(100, 1 << 20, 100);
  std::vector<Ticket> tickets;
  int refused = 0;
  for (int i = 0; i < 37; ++i) {
    auto ticket = admission->Admit(Of(10, 1));
    if (ticket.ok()) {
      tickets.push_back(*std::move(ticket));
    } else {
      ++refused;
      EXPECT_EQ(ReasonOf(ticket.status()), Reason::kQueueFull);
      EXPECT_EQ(ticket.status().message(),
                "no room in the server's budget: 100 of 100 tokens are admitted, this request "
                "brings 10");
    }
  }
  EXPECT_EQ(tickets.size(), 10u);
  EXPECT_EQ(refused, 27);
  tickets.pop_back();
  EXPECT_EQ(RefusalOf(*admission, Of(11, 1)), Reason::kQueueFull);
  EXPECT_TRUE(admission->Admit(Of(10, 1)).ok());
}

TEST(Admission, AtEachLimitAndOneAbove) {
  const auto admission = Make(100, 1000, 60);
  EXPECT_TRUE(admission->Admit(Of(60, 10)).ok());
  EXPECT_EQ(RefusalOf(*admission, Of(61, 10)), Reason::kTooLarge);
  EXPECT_TRUE(admission->Admit(Of(1, 1000)).ok());
  EXPECT_EQ(RefusalOf(*admission, Of(1, 1001)), Reason::kTooLarge);
  const auto held = admission->Admit(Of(60, 600));
  ASSERT_TRUE(held.ok());
  EXPECT_TRUE(admission->Admit(Of(40, 400)).ok());
  EXPECT_EQ(RefusalOf(*admission, Of(41, 400)), Reason::kQueueFull);
  EXPECT_EQ(RefusalOf(*admission, Of(40, 401)), Reason::kMemory);
}

TEST(Admission, RequestsWithoutTokensAreBoundedToo) {
  const auto admission = Make(3, 1000, 3);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 3; ++i) {
    auto ticket = admission->Admit(Of(0, 0));
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*std::move(ticket));
  }
  EXPECT_EQ(RefusalOf(*admission, Of(0, 0)), Reason::kQueueFull);
}

TEST(Admission, RequestsAreBoundedByNumber) {
  const auto admission = std::make_shared<Admission>(AdmissionLimits{{100, 1000, 2}, 100, {}, {}});
  const auto first = admission->Admit(Of(1, 1));
  auto second = admission->Admit(Of(1, 1));
  EXPECT_EQ(RefusalOf(*admission, Of(1, 1)), Reason::kQueueFull);
  second->Release();
  EXPECT_TRUE(admission->Admit(Of(1, 1)).ok());
}

TEST(Admission, ABlocksBudgetIsItsOwn) {
  const auto admission = Make(1000, 1000, 1000);
  const auto block =
      std::make_shared<BudgetAccount>(BudgetAccount{"the budget of m.mlp", {10, 100, 3}, {}});
  const auto of_block = [&](int64_t tokens, int64_t bytes) {
    Arrival arrival = Of(tokens, bytes);
    arrival.block = block;
    return arrival;
  };
  EXPECT_EQ(RefusalOf(*admission, of_block(11, 1)), Reason::kTooLarge);
  EXPECT_EQ(RefusalOf(*admission, of_block(1, 101)), Reason::kTooLarge);
  auto held = admission->Admit(of_block(10, 50));
  ASSERT_TRUE(held.ok());
  const auto refused = admission->Admit(of_block(1, 50));
  EXPECT_EQ(ReasonOf(refused.status()), Reason::kQueueFull);
  EXPECT_EQ(refused.status().message(),
            "no room in the budget of m.mlp: 10 of 10 tokens are admitted, this request brings 1");
  EXPECT_TRUE(admission->Admit(Of(500, 500)).ok()) << "other blocks have room";
  held = admission->Admit(Of(1, 1));  // gives the former back
  std::vector<Ticket> tickets;
  for (int i = 0; i < 2; ++i) tickets.push_back(*admission->Admit(of_block(1, 50)));
  EXPECT_EQ(RefusalOf(*admission, of_block(1, 1)), Reason::kMemory);
  tickets.push_back(*admission->Admit(of_block(1, 0)));
  EXPECT_EQ(RefusalOf(*admission, of_block(1, 0)), Reason::kQueueFull);
  tickets.clear();
  EXPECT_EQ(block->use.requests, 0);
  EXPECT_EQ(block->use.tokens, 0);
  EXPECT_EQ(block->use.bytes, 0);
}

TEST(Admission, QuotasAreByTenant) {
  AdmissionLimits limits{{1000, 1000}, 1000, {10, 100, 5}, {}};
  limits.tenants["large"] = {500, Budget::kNoLimit, Budget::kNoLimit};
  limits.tenants["free"] = {};
  const auto admission = std::make_shared<Admission>(limits);
  const auto of_tenant = [&](const std::string& tenant, int64_t tokens, int64_t bytes) {
    Arrival arrival = Of(tokens, bytes);
    arrival.tenant = tenant;
    return arrival;
  };
  std::vector<Ticket> tickets;
  tickets.push_back(*admission->Admit(of_tenant("a", 10, 10)));
  const auto refused = admission->Admit(of_tenant("a", 1, 1));
  EXPECT_EQ(ReasonOf(refused.status()), Reason::kQuota);
  EXPECT_EQ(refused.status().message(),
            "no room in the quota of tenant \"a\": 10 of 10 tokens are admitted, this request "
            "brings 1");
  EXPECT_GT(RetryAfterOf(refused.status()), absl::ZeroDuration());
  tickets.push_back(*admission->Admit(of_tenant("b", 1, 99)));
  EXPECT_EQ(RefusalOf(*admission, of_tenant("b", 1, 2)), Reason::kQuota);
  EXPECT_EQ(RefusalOf(*admission, of_tenant("", 11, 1)), Reason::kTooLarge) << "it never fits";
  for (int i = 0; i < 5; ++i) tickets.push_back(*admission->Admit(of_tenant("c", 0, 0)));
  EXPECT_EQ(RefusalOf(*admission, of_tenant("c", 0, 0)), Reason::kQuota);
  tickets.push_back(*admission->Admit(of_tenant("large", 500, 500)));
  EXPECT_EQ(RefusalOf(*admission, of_tenant("large", 1, 1)), Reason::kQuota);
  tickets.push_back(*admission->Admit(of_tenant("free", 400, 10)));
  EXPECT_EQ(admission->UseOf("a").tokens, 10);
  tickets.clear();
  for (const char* tenant : {"a", "b", "c", "large", "free"}) {
    EXPECT_EQ(admission->UseOf(tenant).requests, 0) << tenant;
  }
  EXPECT_TRUE(admission->Admit(of_tenant("a", 10, 10)).ok());
}

TEST(Admission, TheBusiestTenantsComeFirst) {
  AdmissionLimits limits{{1000, 1000}, 1000, {10, 100, 5}, {}};
  limits.tenants["named"] = {500, Budget::kNoLimit, Budget::kNoLimit};
  limits.tenants["without a quota"] = {};
  const auto admission = std::make_shared<Admission>(limits);
  std::vector<Ticket> tickets;
  for (const auto& [tenant, tokens] : {std::pair("a", 3), std::pair("b", 5), std::pair("c", 4),
                                       std::pair("without a quota", 20)}) {
    Arrival arrival = Of(tokens, 1);
    arrival.tenant = tenant;
    tickets.push_back(*admission->Admit(arrival));
  }
  size_t count = 0;
  const std::vector<TenantStatus> busiest = admission->BusiestTenants(2, &count);
  EXPECT_EQ(count, 4u);
  ASSERT_EQ(busiest.size(), 2u);
  EXPECT_EQ(busiest[0].name, "b");
  EXPECT_EQ(busiest[0].use.tokens, 5);
  EXPECT_EQ(busiest[0].budget, limits.tenant);
  EXPECT_EQ(busiest[1].name, "c");
  tickets.clear();
  const std::vector<TenantStatus> idle = admission->BusiestTenants(2, &count);
  ASSERT_EQ(idle.size(), 1u) << "only what is configured is known without traffic";
  EXPECT_EQ(idle[0].name, "named");
  EXPECT_EQ(idle[0].use.requests, 0);
  EXPECT_EQ(idle[0].budget, limits.tenants["named"]);
}

TEST(Admission, DeadlinePastOnArrival) {
  const auto admission = Make(10, 10, 10);
  Arrival arrival = Of(1, 1);
  arrival.deadline = kNow;
  EXPECT_EQ(RefusalOf(*admission, arrival), Reason::kExpired);
  arrival.deadline = kNow + absl::Nanoseconds(1);
  EXPECT_TRUE(admission->Admit(arrival).ok());
}

TEST(Admission, AnAnswerThatWouldComeTooLateIsRefusedAtOnce) {
  const auto admission = Make(10, 10, 10);
  Arrival arrival = Of(1, 1);
  arrival.deadline = kNow + absl::Milliseconds(1);
  arrival.predicted = absl::Milliseconds(100);
  const auto ticket = admission->Admit(arrival);
  ASSERT_FALSE(ticket.ok());
  EXPECT_EQ(ReasonOf(ticket.status()), Reason::kDeadlineInfeasible);
  EXPECT_EQ(ticket.status().message(), "the answer is expected in 100 ms, the deadline is in 1 ms");
  EXPECT_EQ(RetryAfterOf(ticket.status()), absl::Milliseconds(99));
  arrival.predicted = absl::Milliseconds(1);
  EXPECT_TRUE(admission->Admit(arrival).ok());
}

TEST(Admission, ATicketGivesBackOnceHoweverItIsMoved) {
  const auto admission = Make(10, 100, 10);
  auto first = admission->Admit(Of(4, 40));
  ASSERT_TRUE(first.ok());
  Ticket a = *std::move(first);
  Ticket b = std::move(a);
  Ticket& same = b;
  b = std::move(same);
  EXPECT_EQ(admission->use().tokens, 4);
  auto second = admission->Admit(Of(5, 50));
  ASSERT_TRUE(second.ok());
  b = *std::move(second);  // what b held before goes back
  EXPECT_EQ(admission->use().tokens, 5);
  b.Release();
  b.Release();
  EXPECT_EQ(admission->use().tokens, 0);
  EXPECT_EQ(admission->use().bytes, 0);
  EXPECT_EQ(admission->use().requests, 0);
}

TEST(Admission, ATicketMayOutliveWhoeverMadeItsController) {
  Ticket ticket;
  {
    const auto admission = Make(10, 10, 10);
    ticket = *admission->Admit(Of(1, 1));
  }
  ticket.Release();
}

TEST(Admission, ClosedRefusesAsDrainingAndAwaitsTheRest) {
  const auto admission = Make(10, 10, 10);
  Ticket ticket = *admission->Admit(Of(1, 1));
  admission->Close();
  EXPECT_EQ(RefusalOf(*admission, Of(1, 1)), Reason::kDraining);
  EXPECT_FALSE(admission->AwaitEmpty(absl::ZeroDuration()));
  std::thread releaser([&] { ticket.Release(); });
  EXPECT_TRUE(admission->AwaitEmpty(absl::Hours(1)));
  releaser.join();
}

TEST(Admission, TheGaugeSeesEveryChangeInOrder) {
  std::vector<int64_t> seen;
  const auto admission =
      std::make_shared<Admission>(AdmissionLimits{{10, 10}, 10, {}, {}},
                                  [&](const AdmissionUse& use) { seen.push_back(use.tokens); });
  {
    const Ticket a = *admission->Admit(Of(2, 1));
    const Ticket b = *admission->Admit(Of(3, 1));
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{2, 5, 2, 0}));
}

}  // namespace
}  // namespace fuseblock
