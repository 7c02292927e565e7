#include "server/rpc/block_runner.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/observe/log.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// Later than this is not a deadline that anybody waits for.
constexpr absl::Duration kDeadlineMax = absl::Hours(24 * 365);
// What gRPC's clock and this one may differ by.
constexpr absl::Duration kClockDifference = absl::Milliseconds(10);

void LogRequest(Rpc rpc, const std::string& block, const absl::Status& status, int64_t tokens,
                absl::Duration whole) {
  if (!LogEnabled(LogLevel::kDebug)) return;
  const std::string code = absl::StatusCodeToString(status.code());
  Log(LogLevel::kDebug, "request", absl::StrCat(block, ": ", code),
      {{"rpc", Name(rpc)},
       {"block", block},
       {"code", code},
       {"tokens", tokens},
       {"microseconds", absl::ToDoubleMicroseconds(whole)}});
}

}  // namespace

void CancelSwitch::Started(Engine::RequestId id) {
  Engine::RequestId before = 0;
  if (!id_.compare_exchange_strong(before, id)) engine_.Cancel(id);
}

void CancelSwitch::Cancel() {
  const Engine::RequestId id = id_.exchange(kCancelled);
  if (id != 0 && id != kCancelled) engine_.Cancel(id);
}

// Requests for names that only a client made up share one series, so that labels stay bounded.
BlockMetrics& BlockRunner::MetricsFor(const absl::Status& status, const std::string& block) const {
  const bool known = !status.ok() && ReasonOf(status) == Reason::kBlockNotReady;
  return known ? *metrics_.Block(block) : *metrics_.UnknownBlock();
}

void BlockRunner::Run(Rpc rpc, const absl::Status& parsed,
                      std::shared_ptr<const RawMessage> message, const WireRequest& request,
                      CallTerms terms, CancelSwitch& cancel,
                      absl::AnyInvocable<void(BlockAnswer) &&> done) const {
  const int64_t request_bytes = static_cast<int64_t>(message->bytes);
  const auto refuse = [&](absl::Status status, BlockMetrics& metrics) {
    BlockAnswer answer;
    answer.status = std::move(status);
    answer.block = request.block;
    const absl::Duration whole = absl::Now() - terms.arrived;
    metrics.ObserveRequest(rpc, answer.status, whole);
    LogRequest(rpc, answer.block, answer.status, 0, whole);
    std::move(done)(std::move(answer));
  };
  if (!parsed.ok()) return refuse(parsed, *metrics_.UnknownBlock());
  auto block = registry_.Find(request.block, request.revision);
  if (!block.ok()) return refuse(block.status(), MetricsFor(block.status(), request.block));
  auto checked = CheckInputs(**block, limits_, request);
  if (!checked.ok()) return refuse(checked.status(), *(*block)->metrics);

  Request submitted;
  submitted.block = *block;
  submitted.tokens = checked->tokens;
  submitted.inputs = std::move(checked->inputs);
  submitted.payload = std::move(message);
  submitted.deadline = terms.deadline;
  submitted.tenant = std::move(terms.tenant);
  submitted.priority = terms.priority;
  auto sample = shadow_.Choose(submitted);
  submitted.done = [rpc, &shadow = shadow_, sample = std::move(sample), block = *std::move(block),
                    form = checked->form, tokens = checked->tokens, arrived = terms.arrived,
                    request_bytes, done = std::move(done)](Outcome outcome) mutable {
    const absl::Time ended = absl::Now();
    BlockAnswer answer;
    answer.status = outcome.status;
    if (answer.status.ok()) {
      answer.response = EncodeResponse(*block, form, outcome);
      answer.backend = DeviceName(outcome.device);
      answer.revision = absl::StrCat(block->revision);
      answer.timings = outcome.timings;
    } else {
      answer.block = block->name;
    }
    const absl::Time encoded = absl::Now();
    answer.encode_us = absl::ToDoubleMicroseconds(encoded - ended);
    BlockMetrics& metrics = *block->metrics;
    if (answer.status.ok()) metrics.ObservePhase(Phase::kEncode, encoded - ended);
    metrics.ObserveRequest(rpc, answer.status, encoded - arrived);
    metrics.ObserveBytes(request_bytes, static_cast<int64_t>(answer.response.bytes));
    LogRequest(rpc, block->name, answer.status, tokens, encoded - arrived);
    if (sample == nullptr) outcome.storage.reset();  // from here on the response's slices hold it
    std::move(done)(std::move(answer));
    if (sample != nullptr) shadow.Offer(std::move(sample), outcome);
  };
  cancel.Started(engine_.Submit(std::move(submitted)));
}

absl::Time DeadlineFrom(std::chrono::system_clock::time_point deadline) {
  const auto now = std::chrono::system_clock::now();
  if (deadline > now && deadline - now > absl::ToChronoSeconds(kDeadlineMax)) {
    return absl::InfiniteFuture();
  }
  return absl::FromChrono(deadline);
}

bool CancelledByClient(absl::Time deadline) { return absl::Now() + kClockDifference < deadline; }

std::string FormatTimings(const BlockAnswer& answer) {
  const Timings& t = answer.timings;
  char text[192];
  std::snprintf(text, sizeof(text),
                "queue=%.1f,batch=%.1f,h2d=%.1f,compute=%.1f,d2h=%.1f,encode=%.1f", t.queue,
                t.batch, t.h2d, t.compute, t.d2h, answer.encode_us);
  return text;
}

}  // namespace fuseblock
