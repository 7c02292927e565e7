#include "server/engine/answer.h"

#include <algorithm>
#include <utility>

#include "server/observe/metrics.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// What an answer's bytes and its share of the budget hang on until the transport lets go.
struct Answer {
  Ticket ticket;
  absl::InlinedVector<std::shared_ptr<const void>, 1> memory;
};

Timings Sum(const PartResults& results) {
  Timings sum = results.front().timings;
  for (const PartResult& result : absl::MakeConstSpan(results).subspan(1)) {
    sum.batch += result.timings.batch;
    sum.h2d += result.timings.h2d;
    sum.compute += result.timings.compute;
    sum.d2h += result.timings.d2h;
  }
  return sum;
}

void ObservePhases(BlockMetrics& series, DeviceType device, const Timings& timings) {
  series.ObservePhase(Phase::kQueue, absl::Microseconds(timings.queue));
  series.ObservePhase(Phase::kBatch, absl::Microseconds(timings.batch));
  series.ObservePhase(Phase::kCompute, absl::Microseconds(timings.compute));
  if (device != DeviceType::kCuda) return;
  series.ObservePhase(Phase::kH2d, absl::Microseconds(timings.h2d));
  series.ObservePhase(Phase::kD2h, absl::Microseconds(timings.d2h));
}

// The answer of a request that has ended with what lanes made of it.
Outcome OutcomeOf(Entry& entry) {
  std::sort(entry.results.begin(), entry.results.end(),
            [](const PartResult& a, const PartResult& b) { return a.first_row < b.first_row; });
  Outcome outcome;
  outcome.status = std::move(entry.results.front().status);
  outcome.device = entry.results.front().device;
  if (!outcome.status.ok()) {
    entry.ticket.Release();
    return outcome;
  }
  outcome.timings = Sum(entry.results);
  auto answer = std::make_shared<Answer>();
  for (PartResult& result : entry.results) {
    for (size_t o = 0; o < result.outputs.size(); ++o) {
      if (!result.outputs[o].empty()) outcome.outputs[o].push_back(result.outputs[o]);
    }
    answer->memory.push_back(std::move(result.memory));
  }
  answer->ticket = std::move(entry.ticket);
  outcome.storage = std::move(answer);
  return outcome;
}

}  // namespace

int64_t AnswerEnded(Batch& batch, Entries ended) {
  for (const EntryPtr& entry : ended) {
    Outcome outcome = OutcomeOf(*entry);
    if (outcome.status.ok()) {
      ObservePhases(*batch.block->metrics, outcome.device.type, outcome.timings);
    } else {
      batch.block->metrics->CountShed(ReasonOf(outcome.status));
    }
    if (!entry->with_lanes) entry->request.payload.reset();
    std::move(entry->request.done)(std::move(outcome));
  }
  const int64_t answered = static_cast<int64_t>(ended.size());
  ended.clear();
  batch.parts.clear();  // the last hold on the blocks, before a drain is told that all is done
  return answered;
}

}  // namespace fuseblock
