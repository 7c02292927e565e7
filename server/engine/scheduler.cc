#include "server/engine/scheduler.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/base/ceil_div.h"

namespace fuseblock {

absl::Status Scheduler::Admit(const EntryPtr& entry, const Capacity& capacity, absl::Time now) {
  const Request& request = entry->request;
  const int64_t batch_tokens = entry->queue->batch_tokens_max();
  const int64_t chunks = std::max<int64_t>(CeilDiv(request.tokens, batch_tokens), 1);
  const CostModel& cost = *capacity.cost;
  const absl::Duration own =
      cost.Certain(std::min(request.tokens, batch_tokens), now) * CeilDiv(chunks, capacity.lanes);
  const absl::Duration ahead = queue_.Ahead(request.tenant, request.priority, chunks);
  Arrival arrival;
  arrival.tokens = request.tokens;
  arrival.bytes = entry->bytes;
  arrival.tenant = request.tenant;
  arrival.block = entry->queue->budget();
  arrival.now = now;
  arrival.deadline = entry->deadline;
  const Prediction predicted{capacity.wait + ahead / capacity.lanes, own};
  arrival.predicted = lateness_.Bound(predicted);
  arrival.backlog = capacity.wait + queue_.Backlog() / capacity.lanes;
  absl::StatusOr<Ticket> ticket = admission_->Admit(arrival);
  if (!ticket.ok()) return ticket.status();
  // The first of a batch bears what a batch costs, later ones their share of a full one.
  const absl::Duration full = cost.Predict(batch_tokens);
  entry->cost = entry->queue->requests() > 0 ? full * request.tokens / batch_tokens
                : chunks > 1                 ? full * chunks
                                             : cost.Predict(request.tokens);
  if (cost.Trusted(now)) entry->predicted = predicted;
  entry->ticket = *std::move(ticket);
  entry->id = next_id_++;
  return absl::OkStatus();
}

void Scheduler::Queue(const EntryPtr& entry) {
  entries_[entry->id] = entry;
  queue_.Push(entry);
}

Part Scheduler::StartAtOnce(const EntryPtr& entry) {
  entry->taken = entry->request.tokens;
  entry->running = 1;
  return {entry, 0, entry->request.tokens, entry->round};
}

void Scheduler::Take(FairQueue::Eligible eligible, CostOf cost, absl::Time now, Parts* batch,
                     Entries* expired) {
  *expired = TakeExpired(now);
  for (queue_.Take(eligible, batch); !batch->empty(); queue_.Take(eligible, batch)) {
    const CostModel& model = cost(*batch->front().entry->queue);
    int64_t tokens = 0;
    for (const Part& part : *batch) tokens += part.rows;
    const absl::Time done = now + model.Certain(tokens, now);
    const auto too_late = [done](const Part& part) { return part.entry->deadline < done; };
    const auto first = std::stable_partition(batch->begin(), batch->end(), std::not_fn(too_late));
    for (auto part = first; part != batch->end(); ++part) {
      Entry& entry = *part->entry;
      queue_.GiveBack(*part);
      const absl::Duration alone = model.Certain(part->rows, now);
      // In company only: the wait was not too long.
      if (entry.deadline < now + alone) lateness_.Observe(entry.predicted, done - entry.submitted);
      End(entry);
      expired->push_back(part->entry);
    }
    batch->erase(first, batch->end());
    if (!batch->empty()) break;
  }
  queue_.Settle(*batch);
}

bool Scheduler::Finish(const Part& part, PartResult result, absl::Time now) {
  Entry& entry = *part.entry;
  queue_.Finished(&entry);
  if (entry.ended || part.round != entry.round) return false;
  if (!result.status.ok()) {
    entry.results.clear();
    entry.results.push_back(std::move(result));
    End(entry);
    return true;
  }
  if (!entry.results.empty() && entry.results.front().device.type != result.device.type) {
    queue_.StartOver(part.entry);
    return false;
  }
  result.first_row = part.first_row;
  result.rows = part.rows;
  entry.finished += part.rows;
  entry.results.push_back(std::move(result));
  if (entry.finished < entry.request.tokens) return false;
  lateness_.Observe(entry.predicted, now - entry.submitted);
  End(entry);
  return true;
}

void Scheduler::ExpireTaken(const Parts& parts, absl::Time now, Entries* expired) {
  for (const Part& part : parts) {
    Entry& entry = *part.entry;
    if (entry.ended || part.round != entry.round || entry.deadline > now) continue;
    lateness_.Observe(entry.predicted, entry.deadline - entry.submitted);
    End(entry);
    expired->push_back(part.entry);
  }
}

std::vector<bool> Scheduler::StillWanted(const Parts& parts) {
  std::vector<bool> wanted;
  for (const Part& part : parts) {
    wanted.push_back(!part.entry->ended && part.round == part.entry->round);
    if (!wanted.back()) queue_.Finished(part.entry.get());
  }
  return wanted;
}

EntryPtr Scheduler::Cancel(Engine::RequestId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  EntryPtr entry = found->second;
  End(*entry);
  return entry;
}

Entries Scheduler::TakeExpired(absl::Time now) {
  Entries expired = End(queue_.TakeExpired(now));
  for (const EntryPtr& entry : expired) {
    // At least so long; it is late whatever it would have taken.
    lateness_.Observe(entry->predicted, entry->deadline - entry->submitted);
  }
  return expired;
}

Entries Scheduler::TakeAll(FairQueue::Eligible which) { return End(queue_.TakeAll(which)); }

Entries Scheduler::End(Entries removed) {
  for (const EntryPtr& entry : removed) End(*entry);
  return removed;
}

// The caller holds it.
void Scheduler::End(Entry& entry) {
  if (FairQueue::Waits(entry)) queue_.Remove(&entry);
  entry.ended = true;
  entry.with_lanes = entry.running > 0;
  entries_.erase(entry.id);
}

}  // namespace fuseblock
