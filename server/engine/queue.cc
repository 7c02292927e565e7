#include "server/engine/queue.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

namespace fuseblock {
namespace {

// What a request counts in the tenants' account: one without tokens is not free.
int64_t Charge(const Part& part) { return std::max<int64_t>(part.rows, 1); }

int Priority(const Entry& entry) { return std::clamp(entry.request.priority, 0, kPriorities - 1); }

int64_t Left(const Entry& entry) { return entry.request.tokens - entry.taken; }

int64_t NextRows(const Entry& entry) {
  return std::min(Left(entry), entry.queue->batch_tokens_max());
}

absl::Duration CostOf(const Entry& entry, int64_t rows) {
  return entry.request.tokens == 0 ? entry.cost : entry.cost * rows / entry.request.tokens;
}

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

void FairQueue::Count(const Entry& entry, int sign) {
  const int64_t left = Left(entry);
  const int64_t bytes = entry.bytes / std::max<int64_t>(entry.request.tokens, 1) * left;
  const absl::Duration cost = CostOf(entry, left);
  Tenant& tenant = tenants_[entry.tenant_];
  tenant.cost[Priority(entry)] += sign * cost;
  tenant.next_cost[Priority(entry)] += sign * CostOf(entry, NextRows(entry));
  entry.queue->tokens_ += sign * left;
  tokens_ += sign * left;
  bytes_ += sign * bytes;
  backlog_ += sign * cost;
}

void FairQueue::Push(EntryPtr entry) {
  entry->tenant_ = TenantOf(entry->request.tenant);
  Tenant& tenant = tenants_[entry->tenant_];
  if (tenant.requests == 0) tenant.served = std::max(tenant.served, level_);
  Insert(std::move(entry));
}

// At the back of its line.
void FairQueue::Insert(EntryPtr entry) {
  Entry* item = entry.get();
  BatchQueue& queue = *item->queue;
  BatchQueue::PerTenant& mine = queue.tenants_[item->tenant_];
  item->order_ = next_order_++;
  item->fifo_ = &mine.lines[Priority(*item)].waiting;
  item->place_ = item->fifo_->insert(item->fifo_->end(), std::move(entry));
  item->expiry_ = deadlines_.end();
  if (item->deadline < absl::InfiniteFuture()) {
    item->expiry_ = deadlines_.emplace(item->deadline, item);
  }
  ++tenants_[item->tenant_].requests;
  ++mine.requests;
  if (queue.requests_++ == 0) {
    queue.active_at_ = static_cast<int>(active_.size());
    active_.push_back(&queue);
  }
  Count(*item, 1);
}

EntryPtr FairQueue::Remove(Entry* entry) {
  BatchQueue& queue = *entry->queue;
  Count(*entry, -1);
  const auto mine = queue.tenants_.find(entry->tenant_);
  EntryPtr owned = std::move(*entry->place_);
  entry->fifo_->erase(entry->place_);
  entry->fifo_ = nullptr;
  if (--mine->second.requests == 0) queue.tenants_.erase(mine);
  if (--queue.requests_ == 0) {
    active_[queue.active_at_] = active_.back();
    active_[queue.active_at_]->active_at_ = queue.active_at_;
    active_.pop_back();
    queue.active_at_ = -1;
  }
  if (entry->expiry_ != deadlines_.end()) deadlines_.erase(entry->expiry_);
  --tenants_[entry->tenant_].requests;
  return owned;
}

Part FairQueue::TakePart(Entry* head) {
  Part part{*head->place_, head->taken, NextRows(*head), head->round};
  tenants_[head->tenant_].served += Charge(part);
  ++head->running;
  if (part.rows == Left(*head)) {
    Remove(head);
    head->taken += part.rows;
    return part;
  }
  Count(*head, -1);
  head->taken += part.rows;
  Count(*head, 1);
  BatchQueue::Line& line = head->queue->tenants_.at(head->tenant_).lines[Priority(*head)];
  line.continuing.splice(line.continuing.end(), *head->fifo_, head->place_);
  head->fifo_ = &line.continuing;
  head->order_ = next_order_++;
  return part;
}

void FairQueue::Finished(Entry* entry) {
  if (--entry->running > 0 || !Waits(*entry)) return;
  BatchQueue::Line& line = entry->queue->tenants_.at(entry->tenant_).lines[Priority(*entry)];
  if (entry->fifo_ == &line.waiting) return;  // it started over
  line.waiting.splice(line.waiting.end(), *entry->fifo_, entry->place_);
  entry->fifo_ = &line.waiting;
  entry->order_ = next_order_++;
}

void FairQueue::StartOver(const EntryPtr& entry) {
  if (Waits(*entry)) Remove(entry.get());
  ++entry->round;
  entry->taken = entry->finished = 0;
  entry->results.clear();
  Push(entry);
}

Entry* FairQueue::Head(const BatchQueue::PerTenant& tenant) {
  for (const BatchQueue::Line& line : tenant.lines) {
    if (!line.waiting.empty()) return line.waiting.front().get();
    if (!line.continuing.empty()) return line.continuing.front().get();
  }
  return nullptr;  // unreachable: a tenant without requests is not in the map
}

// Of one tenant's requests.
bool FairQueue::MoreUrgent(const Entry& a, const Entry& b) {
  const auto key = [](const Entry& e) { return std::tuple(Priority(e), e.running > 0, e.order_); };
  return key(a) < key(b);
}

// Of two tenants' requests. How urgent a tenant calls its own is no affair of the others.
bool FairQueue::Due(const Entry& a, const Entry& b) const {
  const auto key = [this](const Entry& e) {
    return std::tuple(tenants_[e.tenant_].served, e.running > 0, e.order_);
  };
  return key(a) < key(b);
}

BatchQueue* FairQueue::Leader(Eligible eligible) {
  heads_.assign(tenants_.size(), nullptr);
  for (const BatchQueue* queue : active_) {
    if (!eligible(*queue)) continue;
    for (const auto& [tenant, mine] : queue->tenants_) {
      Entry* head = Head(mine);
      if (heads_[tenant] == nullptr || MoreUrgent(*head, *heads_[tenant])) heads_[tenant] = head;
    }
  }
  const Entry* leader = nullptr;
  for (const Entry* head : heads_) {
    if (head != nullptr && (leader == nullptr || Due(*head, *leader))) leader = head;
  }
  return leader == nullptr ? nullptr : leader->queue;
}

Entry* FairQueue::Next(const BatchQueue& queue, const std::vector<bool>& skip) const {
  Entry* next = nullptr;
  for (const auto& [tenant, mine] : queue.tenants_) {
    if (skip[tenant]) continue;
    Entry* head = Head(mine);
    if (next == nullptr || Due(*head, *next)) next = head;
  }
  return next;
}

void FairQueue::Take(Eligible eligible, Parts* batch) {
  BatchQueue* queue = Leader(eligible);
  if (queue == nullptr) return;
  std::vector<bool> full(tenants_.size(), false);
  int64_t room = queue->batch_tokens_max_;
  int64_t ahead_max = std::numeric_limits<int64_t>::max();  // what one who fills up was served
  while (queue->requests_ > 0) {
    Entry* next = Next(*queue, full);
    if (next == nullptr || tenants_[next->tenant_].served > ahead_max) break;
    if (NextRows(*next) > room) {
      full[next->tenant_] = true;  // not overtaken by its own later ones; it leads a batch soon
      ahead_max = std::min(ahead_max, tenants_[next->tenant_].served + queue->batch_tokens_max_);
      continue;
    }
    batch->push_back(TakePart(next));
    room -= batch->back().rows;
  }
}

void FairQueue::GiveBack(const Part& part) {
  tenants_[part.entry->tenant_].served -= Charge(part);
  Finished(part.entry.get());
}

void FairQueue::Settle(const Parts& batch) {
  if (batch.empty()) return;
  const int64_t batch_tokens_max = batch.front().entry->queue->batch_tokens_max();
  int64_t top = 0;
  for (const Part& part : batch) top = std::max(top, tenants_[part.entry->tenant_].served);
  int64_t least = top;
  for (Tenant& tenant : tenants_) {
    if (tenant.requests == 0) continue;
    tenant.served = std::max(tenant.served, top - 2 * batch_tokens_max);
    least = std::min(least, tenant.served);
  }
  level_ = std::max(level_, least);
}

Entries FairQueue::TakeExpired(absl::Time now) {
  Entries entries;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    entries.push_back(Remove(deadlines_.begin()->second));
  }
  return entries;
}

Entries FairQueue::TakeAll(Eligible which) {
  Entries entries;
  const std::vector<BatchQueue*> queues = active_;  // Remove changes it
  for (BatchQueue* queue : queues) {
    if (!which(*queue)) continue;
    while (queue->requests_ > 0) {
      entries.push_back(Remove(Head(queue->tenants_.begin()->second)));
    }
  }
  return entries;
}

absl::Time FairQueue::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

absl::Duration FairQueue::Ahead(const std::string& tenant, int priority, int64_t chunks) const {
  const auto found = tenant_numbers_.find(tenant);
  const int me = found == tenant_numbers_.end() ? -1 : found->second;
  absl::Duration own;
  for (int p = 0; me >= 0 && p <= std::clamp(priority, 0, kPriorities - 1); ++p) {
    own += std::min(tenants_[me].cost[p], tenants_[me].next_cost[p] * chunks);
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
