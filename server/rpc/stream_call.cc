#include "server/rpc/stream_call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/reason.h"
#include "server/rpc/call_terms.h"
#include "server/rpc/status.h"

namespace fuseblock {

std::shared_ptr<StreamCall> StreamCall::Create(grpc::CallbackServerContext* context,
                                               const BlockRunner& runner, int requests_max) {
  std::shared_ptr<StreamCall> call(new StreamCall(context, runner, requests_max));
  std::lock_guard<std::mutex> lock(call->mutex_);
  call->self_ = call;
  return call;
}

void StreamCall::Start() {
  std::lock_guard<std::mutex> lock(mutex_);
  started_ = true;
  const absl::Status status = ReadTerms(*context_, &terms_);
  if (!status.ok()) refusal_ = status;
  Advance();
}

void StreamCall::EndWhenIdle() {
  std::lock_guard<std::mutex> lock(mutex_);
  ending_ = true;
  Advance();
}

void StreamCall::OnReadDone(bool ok) {
  std::shared_ptr<const RawMessage> message;
  if (ok) {
    absl::StatusOr<std::shared_ptr<const RawMessage>> raw = RawMessage::From(read_);
    read_.Clear();
    if (raw.ok()) message = *std::move(raw);
  }
  if (message != nullptr) Accept(message);
  std::lock_guard<std::mutex> lock(mutex_);
  reading_ = false;
  if (message == nullptr) read_closed_ = true;
  Advance();
}

void StreamCall::Accept(std::shared_ptr<const RawMessage> message) {
  WireStreamRequest wire;
  absl::Status status = ParseWire(message->pieces, &wire);
  const uint64_t id = wire.request_id;
  CallTerms terms = terms_;
  terms.arrived = absl::Now();
  if (wire.timeout_us > 0) {
    // Clamped: the sum with the arrival must not overflow.
    const auto timeout =
        static_cast<int64_t>(std::min<uint64_t>(wire.timeout_us, int64_t{1} << 60));
    terms.deadline = std::min(terms.deadline, terms.arrived + absl::Microseconds(timeout));
  }
  auto cancel = std::make_shared<CancelSwitch>(runner_.engine());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (broken_) return;
    if (status.ok() && !in_flight_.emplace(id, cancel).second) {
      status =
          MakeError(Reason::kBadTensor, absl::StrCat("request_id: ", id, " is in flight already"));
    }
    ++unanswered_;
  }
  const bool named = status.ok();
  runner_.Run(Rpc::kStreamBlocks, status, std::move(message), wire.request, std::move(terms),
              *cancel, [self = shared_from_this(), id, named](BlockAnswer answer) {
                if (answer.status.ok()) {
                  self->Answer(id, named, EncodeStreamResponse(id, std::move(answer.response)));
                } else {
                  self->Answer(id, named, EncodeStreamError(id, answer.status));
                }
              });
}

void StreamCall::Answer(uint64_t request_id, bool named, EncodedMessage message) {
  std::lock_guard<std::mutex> lock(mutex_);
  --unanswered_;
  if (named) in_flight_.erase(request_id);
  if (!broken_) answers_.push_back(std::move(message));
  Advance();
}

void StreamCall::OnWriteDone(bool ok) {
  if (!ok) OnCancel();  // nobody reads any more
  std::lock_guard<std::mutex> lock(mutex_);
  write_.Clear();
  writing_ = false;
  Advance();
}

// At the stream's deadline gRPC cancels as well: requests that expire are the engine's to end and
// to count, so only a call that ends before its deadline cancels them.
void StreamCall::OnCancel() {
  std::vector<std::shared_ptr<CancelSwitch>> switches;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
    answers_.clear();
    if (CancelledByClient(terms_.deadline)) {
      for (const auto& [id, cancel] : in_flight_) switches.push_back(cancel);
    }
    Advance();
  }
  for (const auto& cancel : switches) cancel->Cancel();
}

void StreamCall::OnDone() {
  std::shared_ptr<StreamCall> self;  // freed after the lock, which it may own
  std::lock_guard<std::mutex> lock(mutex_);
  self.swap(self_);
}

// Start* and Finish never run a reaction before they return, so they may be called with the lock
// held; it keeps a late Start* from following a Finish.
void StreamCall::Advance() {
  if (finished_) return;
  if (!writing_ && !answers_.empty()) {
    writing_ = true;
    answers_.front().WriteTo(&write_);
    answers_.pop_front();
    StartWrite(&write_);
  }
  // An answer that waits or is being written still counts: a client that does not read must not
  // make the server keep more than the limit.
  const size_t held = unanswered_ + answers_.size() + (writing_ ? 1 : 0);
  const bool takes = started_ && !read_closed_ && !broken_ && !ending_ && refusal_.ok();
  if (takes && !reading_ && held < requests_max_) {
    reading_ = true;
    StartRead(&read_);
  } else if (held == 0 && !takes) {
    finished_ = true;
    absl::Status status = refusal_;
    if (status.ok() && ending_ && !read_closed_) {
      status = MakeError(Reason::kDraining, "the server is shutting down", absl::Seconds(1));
    }
    if (!status.ok() && !broken_) runner_.CountError(status);
    Finish(ToGrpcStatus(status, "", context_));
  }
}

}  // namespace fuseblock
