#include "server/engine/admission.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// A replica that goes away does not come back soon; another one answers at once.
constexpr absl::Duration kRetryWhenDraining = absl::Seconds(1);
constexpr absl::Duration kRetryMin = absl::Milliseconds(1);
constexpr absl::Duration kRetryMax = absl::Seconds(5);

// Half of what is queued is done by then, so the next attempt finds room.
absl::Duration RetryAfter(absl::Duration backlog) {
  return std::clamp(backlog / 2, kRetryMin, kRetryMax);
}

std::string Ms(absl::Duration duration) {
  return absl::StrCat(absl::ToDoubleMilliseconds(duration), " ms");
}

// The three things that a budget bounds, and why what does not fit is refused.
struct Bound {
  const char* unit;
  int64_t Budget::*max;
  int64_t AdmissionUse::*use;
  Reason refusal;
};
constexpr Bound kBounds[] = {
    {"tokens", &Budget::tokens_max, &AdmissionUse::tokens, Reason::kQueueFull},
    {"requests", &Budget::requests_max, &AdmissionUse::requests, Reason::kQueueFull},
    {"bytes", &Budget::bytes_max, &AdmissionUse::bytes, Reason::kMemory},
};

// Whether the request could be admitted if nothing else were.
absl::Status CheckAlone(const BudgetAccount& account, const AdmissionUse& request) {
  for (const Bound& bound : kBounds) {
    if (request.*bound.use <= account.budget.*bound.max) continue;
    return MakeError(Reason::kTooLarge,
                     absl::StrCat(account.name, ": expected at most ", account.budget.*bound.max,
                                  " ", bound.unit, ", got ", request.*bound.use));
  }
  return absl::OkStatus();
}

// Whether it can be beside what is.
absl::Status CheckRoom(const BudgetAccount& account, const AdmissionUse& request, bool quota,
                       absl::Duration backlog) {
  for (const Bound& bound : kBounds) {
    const int64_t used = account.use.*bound.use;
    if (used + request.*bound.use <= account.budget.*bound.max) continue;
    return MakeError(
        quota ? Reason::kQuota : bound.refusal,
        absl::StrCat("no room in ", account.name, ": ", used, " of ", account.budget.*bound.max,
                     " ", bound.unit, " are admitted, this request brings ", request.*bound.use),
        RetryAfter(backlog));
  }
  return absl::OkStatus();
}

void Add(const AdmissionUse& request, int sign, BudgetAccount& account) {
  for (const Bound& bound : kBounds) account.use.*bound.use += sign * request.*bound.use;
}

}  // namespace

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Release();
    admission_ = std::move(other.admission_);
    held_ = other.held_;
    block_ = std::move(other.block_);
    tenant_ = std::move(other.tenant_);
  }
  return *this;
}

void Ticket::Release() {
  if (const std::shared_ptr<Admission> admission = std::move(admission_)) admission->Return(*this);
  block_.reset();
  tenant_.reset();
}

Admission::Admission(AdmissionLimits limits, std::function<void(const AdmissionUse&)> on_change)
    : limits_(std::move(limits)),
      on_change_(std::move(on_change)),
      all_{"the server's budget", limits_.all, {}} {}

std::shared_ptr<BudgetAccount> Admission::TenantOf(const std::string& name) {
  const auto named = limits_.tenants.find(name);
  const Budget& quota = named == limits_.tenants.end() ? limits_.tenant : named->second;
  if (quota == Budget()) return nullptr;
  if (const auto found = tenants_.find(name); found != tenants_.end()) return found->second;
  return std::make_shared<BudgetAccount>(
      BudgetAccount{absl::StrCat("the quota of tenant \"", name, "\""), quota, {}});
}

absl::StatusOr<Ticket> Admission::Admit(const Arrival& arrival) {
  // Even a request without tokens takes a place.
  const AdmissionUse request{1, std::max<int64_t>(arrival.tokens, 1), arrival.bytes};
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return MakeError(Reason::kDraining, "the server is draining", kRetryWhenDraining);
  if (arrival.deadline <= arrival.now) {
    return MakeError(Reason::kExpired, absl::StrCat("the deadline was past on arrival, by ",
                                                    Ms(arrival.now - arrival.deadline)));
  }
  if (arrival.tokens > limits_.request_tokens_max) {
    return MakeError(Reason::kTooLarge,
                     absl::StrCat("expected at most ", limits_.request_tokens_max,
                                  " tokens in a request, got ", arrival.tokens));
  }
  const std::shared_ptr<BudgetAccount> tenant = TenantOf(arrival.tenant);
  BudgetAccount* const accounts[] = {&all_, arrival.block.get(), tenant.get()};
  for (const BudgetAccount* account : accounts) {
    if (account == nullptr) continue;
    if (absl::Status alone = CheckAlone(*account, request); !alone.ok()) return alone;
  }
  for (const BudgetAccount* account : accounts) {
    if (account == nullptr) continue;
    absl::Status room = CheckRoom(*account, request, account == tenant.get(), arrival.backlog);
    if (!room.ok()) return room;
  }
  if (arrival.deadline - arrival.now < arrival.predicted) {
    const absl::Duration left = arrival.deadline - arrival.now;
    return MakeError(Reason::kDeadlineInfeasible,
                     absl::StrCat("the answer is expected in ", Ms(arrival.predicted),
                                  ", the deadline is in ", Ms(left)),
                     std::clamp(arrival.predicted - left, kRetryMin, kRetryMax));
  }
  for (BudgetAccount* account : accounts) {
    if (account != nullptr) Add(request, 1, *account);
  }
  if (tenant != nullptr) tenants_[arrival.tenant] = tenant;
  if (on_change_) on_change_(all_.use);
  Ticket ticket;
  ticket.admission_ = shared_from_this();
  ticket.held_ = request;
  ticket.block_ = arrival.block;
  ticket.tenant_ = tenant;
  return ticket;
}

void Admission::Return(const Ticket& ticket) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (BudgetAccount* account : {&all_, ticket.block_.get(), ticket.tenant_.get()}) {
    if (account != nullptr) Add(ticket.held_, -1, *account);
  }
  if (ticket.tenant_ != nullptr && ticket.tenant_->use.requests == 0) {
    const auto same = [&](const auto& item) { return item.second == ticket.tenant_; };
    tenants_.erase(std::find_if(tenants_.begin(), tenants_.end(), same));
  }
  if (on_change_) on_change_(all_.use);
  if (all_.use.requests == 0) empty_.notify_all();
}

void Admission::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
}

bool Admission::AwaitEmpty(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  return empty_.wait_until(lock, end, [this] { return all_.use.requests == 0; });
}

void Admission::Detach() {
  std::lock_guard<std::mutex> lock(mutex_);
  on_change_ = nullptr;
}

AdmissionUse Admission::use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return all_.use;
}

AdmissionUse Admission::UseOf(const std::string& tenant) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? AdmissionUse() : found->second->use;
}

std::vector<TenantStatus> Admission::BusiestTenants(size_t max, size_t* count) const {
  static const AdmissionUse kNothing;
  struct Known {
    const std::string* name;
    const AdmissionUse* use;
    const Budget* budget;
  };
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Known> known;
  for (const auto& [name, account] : tenants_) {
    known.push_back({&name, &account->use, &account->budget});
  }
  for (const auto& [name, budget] : limits_.tenants) {
    if (budget != Budget() && !tenants_.contains(name))
      known.push_back({&name, &kNothing, &budget});
  }
  *count = known.size();
  const auto shown = known.begin() + static_cast<int64_t>(std::min(max, known.size()));
  std::partial_sort(known.begin(), shown, known.end(), [](const Known& a, const Known& b) {
    return a.use->tokens != b.use->tokens ? a.use->tokens > b.use->tokens : *a.name < *b.name;
  });
  std::vector<TenantStatus> tenants;
  for (auto one = known.begin(); one != shown; ++one) {
    tenants.push_back({*one->name, *one->use, *one->budget});
  }
  return tenants;
}

}  // namespace fuseblock
