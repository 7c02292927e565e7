#include "client/cpp/stream.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/callback_scope.h"
#include "client/cpp/encoded.h"

namespace fuseblock::client {

std::shared_ptr<Stream::Reactor> Stream::Reactor::Start(StreamStub& stub,
                                                        const CallOptions& options,
                                                        OnAnswer on_answer) {
  std::shared_ptr<Reactor> reactor(new Reactor(std::move(on_answer)));
  ApplyOptions(options, reactor->context_);
  std::lock_guard<std::mutex> lock(reactor->mutex_);
  stub.PrepareBidiStreamingCall(&reactor->context_, "/fuseblock.v1.BlockService/StreamBlocks", {},
                                reactor.get());
  reactor->AddHold();
  reactor->StartRead(&reactor->read_);
  reactor->StartCall();
  return reactor;
}

// The stream, which waits for OnDone, frees this, never gRPC's thread: the context may hold the
// last reference to the channel, whose end on one of gRPC's threads would be that thread's join of
// itself.
Stream::Reactor::~Reactor() {
  std::lock_guard<std::mutex> lock(mutex_);  // OnDone has left it
}

void Stream::Reactor::Send(uint64_t request_id, const Request& request, absl::Duration timeout) {
  absl::Status refusal;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closing_ || broken_ || done_) {
      refusal = absl::UnavailableError("the stream has ended");
    } else if (!in_flight_.insert(request_id).second) {
      refusal = absl::InvalidArgumentError(
          absl::StrCat("request_id: ", request_id, " is in flight already"));
    } else {
      // 0 would be no timeout at all.
      const uint64_t timeout_us =
          timeout == absl::InfiniteDuration()
              ? 0
              : static_cast<uint64_t>(std::max<int64_t>(1, absl::ToInt64Microseconds(timeout)));
      unsent_.push_back(request.encoded().OnStream(request_id, timeout_us));
      Advance();
    }
  }
  if (!refusal.ok()) on_answer_(request_id, refusal);
}

void Stream::Reactor::CloseWrites() {
  std::lock_guard<std::mutex> lock(mutex_);
  closing_ = true;
  Advance();
}

absl::Status Stream::Reactor::AwaitDone() {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return done_; });
  return status_;
}

void Stream::Reactor::Advance() {
  if (!held_ || writing_) return;
  if (!broken_ && !unsent_.empty()) {
    writing_ = true;
    write_.Swap(&unsent_.front());
    unsent_.pop_front();
    StartWrite(&write_);
  } else if (broken_ || closing_) {
    held_ = false;
    if (!broken_) StartWritesDone();
    RemoveHold();
  }
}

void Stream::Reactor::OnReadDone(bool ok) {
  if (!ok) {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
    return Advance();
  }
  const uint64_t id = read_.request_id();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    in_flight_.erase(id);
  }
  const CallbackScope scope;
  if (read_.code() == 0) {
    on_answer_(id, AnswerFrom(std::move(*read_.mutable_response())));
  } else {
    on_answer_(id, ErrorFrom(read_));
  }
  StartRead(&read_);
}

void Stream::Reactor::OnWriteDone(bool ok) {
  std::lock_guard<std::mutex> lock(mutex_);
  writing_ = false;
  broken_ = broken_ || !ok;
  Advance();
}

void Stream::Reactor::OnDone(const grpc::Status& status) {
  const absl::Status end = status.ok() ? absl::OkStatus() : ErrorFrom(status);
  std::unordered_set<uint64_t> unanswered;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
    unanswered.swap(in_flight_);
  }
  const absl::Status lost =
      end.ok() ? absl::UnavailableError("the stream ended before the answer") : end;
  {
    const CallbackScope scope;
    for (const uint64_t id : unanswered) on_answer_(id, lost);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  status_ = end;
  done_ = true;
  ended_.notify_all();
}

void Stream::Send(uint64_t request_id, const Request& request, absl::Duration timeout) {
  reactor_->Send(request_id, request, timeout);
}

absl::Status Stream::Finish() {
  reactor_->CloseWrites();
  return reactor_->AwaitDone();
}

void Stream::Cancel() { reactor_->Cancel(); }

Stream::~Stream() {
  Cancel();
  (void)Finish();
}

}  // namespace fuseblock::client
