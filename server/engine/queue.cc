#include "server/engine/queue.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

namespace fuseblock {
namespace {

// What a request counts in the tenants' account: one without tokens is not free.
int64_t Charge(const Entry& entry) { return std::max<int64_t>(entry.request.tokens, 1); }

int Priority(const Entry& entry) { return std::clamp(entry.request.priority, 0, kPriorities - 1); }

}  // namespace

int FairQueue::TenantOf(const std::string& name) {
  if (const auto found = tenant_numbers_.find(name); found != tenant_numbers_.end()) {
    return found->second;
  }
  int number = -1;
  for (size_t i = 0; i < tenants_.size() && number < 0; ++i) {
    if (tenants_[i].requests == 0) number = static_cast<int>(i);
  }
  if (number < 0 && tenants_.size() < kTenantsMax) {
    number = static_cast<int>(tenants_.size());
    tenants_.emplace_back();
  }
  if (number < 0) return static_cast<int>(std::hash<std::string>()(name) % kTenantsMax);
  Tenant& tenant = tenants_[number];
  const auto former = tenant_numbers_.find(tenant.name);
  if (former != tenant_numbers_.end() && former->second == number) tenant_numbers_.erase(former);
  tenant.name = name;
  tenant.served = level_;
  tenant_numbers_[name] = number;
  return number;
}

void FairQueue::Push(std::unique_ptr<Entry> entry) {
  Entry* item = entry.get();
  const int priority = Priority(*item);
  item->order_ = next_order_++;
  item->tenant_ = TenantOf(item->request.tenant);
  Tenant& tenant = tenants_[item->tenant_];
  if (tenant.requests++ == 0) tenant.served = std::max(tenant.served, level_);
  tenant.cost[priority] += item->cost;

  BatchQueue& queue = *item->queue;
  BatchQueue::PerTenant& mine = queue.tenants_[item->tenant_];
  Entry::Fifo& fifo = mine.fifos[priority];
  item->place_ = fifo.insert(fifo.end(), std::move(entry));
  ++mine.requests;
  if (queue.requests_++ == 0) {
    queue.active_at_ = static_cast<int>(active_.size());
    active_.push_back(&queue);
  }
  item->expiry_ = deadlines_.end();
  if (item->deadline < absl::InfiniteFuture()) {
    item->expiry_ = deadlines_.emplace(item->deadline, item);
  }
  queue.tokens_ += item->request.tokens;
  tokens_ += item->request.tokens;
  bytes_ += item->bytes;
  backlog_ += item->cost;
}

std::unique_ptr<Entry> FairQueue::Remove(Entry* entry) {
  const int priority = Priority(*entry);
  BatchQueue& queue = *entry->queue;
  Tenant& tenant = tenants_[entry->tenant_];
  const auto mine = queue.tenants_.find(entry->tenant_);
  std::unique_ptr<Entry> owned = std::move(*entry->place_);
  mine->second.fifos[priority].erase(entry->place_);
  if (--mine->second.requests == 0) queue.tenants_.erase(mine);
  if (--queue.requests_ == 0) {
    active_[queue.active_at_] = active_.back();
    active_[queue.active_at_]->active_at_ = queue.active_at_;
    active_.pop_back();
    queue.active_at_ = -1;
  }
  if (entry->expiry_ != deadlines_.end()) deadlines_.erase(entry->expiry_);
  --tenant.requests;
  tenant.cost[priority] -= entry->cost;
  queue.tokens_ -= entry->request.tokens;
  tokens_ -= entry->request.tokens;
  bytes_ -= entry->bytes;
  backlog_ -= entry->cost;
  return owned;
}

Entry* FairQueue::Head(const BatchQueue& queue, int tenant) {
  for (const Entry::Fifo& fifo : queue.tenants_.at(tenant).fifos) {
    if (!fifo.empty()) return fifo.front().get();
  }
  return nullptr;  // unreachable: a tenant without requests is not in the map
}

int FairQueue::LeastServed(const BatchQueue& queue, const std::vector<bool>& skip) const {
  int best = -1;
  for (const auto& [tenant, mine] : queue.tenants_) {
    if (skip[tenant]) continue;
    if (best < 0 || tenants_[tenant].served < tenants_[best].served) best = tenant;
  }
  return best;
}

// The queue with the request that is due: of the tenant served least, its most urgent, its oldest.
BatchQueue* FairQueue::Leader(Eligible eligible) const {
  BatchQueue* leader = nullptr;
  std::tuple<int64_t, int, int64_t> best;
  for (BatchQueue* queue : active_) {
    if (!eligible(*queue)) continue;
    for (const auto& [tenant, mine] : queue->tenants_) {
      const Entry* head = Head(*queue, tenant);
      const std::tuple<int64_t, int, int64_t> key(tenants_[tenant].served, Priority(*head),
                                                  head->order_);
      if (leader == nullptr || key < best) {
        leader = queue;
        best = key;
      }
    }
  }
  return leader;
}

void FairQueue::Take(Eligible eligible, absl::Time now, Entries* batch, Entries* expired) {
  for (std::unique_ptr<Entry>& entry : TakeExpired(now)) expired->push_back(std::move(entry));
  BatchQueue* queue = Leader(eligible);
  if (queue == nullptr) return;
  std::vector<bool> full(tenants_.size(), false);
  int64_t room = queue->batch_tokens_max_;
  while (queue->requests_ > 0) {
    const int tenant = LeastServed(*queue, full);
    if (tenant < 0) return;
    Entry* head = Head(*queue, tenant);
    if (batch->empty()) {
      level_ = std::max(level_, tenants_[tenant].served);
    } else if (head->request.tokens > room) {
      full[tenant] = true;  // not overtaken by its own later requests; it leads a batch soon
      continue;
    }
    room -= head->request.tokens;
    tenants_[tenant].served += Charge(*head);
    batch->push_back(Remove(head));
  }
}

FairQueue::Entries FairQueue::TakeExpired(absl::Time now) {
  Entries entries;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    entries.push_back(Remove(deadlines_.begin()->second));
  }
  return entries;
}

FairQueue::Entries FairQueue::TakeAll(Eligible which) {
  Entries entries;
  const std::vector<BatchQueue*> queues = active_;  // Remove changes it
  for (BatchQueue* queue : queues) {
    if (!which(*queue)) continue;
    while (queue->requests_ > 0) {
      entries.push_back(Remove(Head(*queue, queue->tenants_.begin()->first)));
    }
  }
  return entries;
}

absl::Time FairQueue::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

absl::Duration FairQueue::Ahead(const std::string& tenant, int priority) const {
  const auto found = tenant_numbers_.find(tenant);
  const int me = found == tenant_numbers_.end() ? -1 : found->second;
  absl::Duration own;
  for (int p = 0; me >= 0 && p <= std::clamp(priority, 0, kPriorities - 1); ++p) {
    own += tenants_[me].cost[p];
  }
  absl::Duration ahead = own;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    if (static_cast<int>(i) == me || tenants_[i].requests == 0) continue;
    absl::Duration theirs;
    for (const absl::Duration cost : tenants_[i].cost) theirs += cost;
    ahead += std::min(theirs, own);
  }
  return ahead;
}

}  // namespace fuseblock
