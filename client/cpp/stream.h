// One StreamBlocks call, as gRPC drives it.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/client_callback.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "client/cpp/client.h"

namespace fuseblock::client {

using StreamStub = grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::StreamBlocksResponse>;

// Owned by the Stream, which waits for OnDone before it lets go.
class Stream::Reactor final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, v1::StreamBlocksResponse> {
 public:
  ~Reactor() override;

  static std::shared_ptr<Reactor> Start(StreamStub& stub, const CallOptions& options,
                                        OnAnswer on_answer);

  void Send(uint64_t request_id, const Request& request, absl::Duration timeout);
  // Half-closes once everything is written.
  void CloseWrites();
  void Cancel() { context_.TryCancel(); }
  absl::Status AwaitDone();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  explicit Reactor(OnAnswer on_answer) : on_answer_(std::move(on_answer)) {}

  // Starts the next write or the half-close, and lets gRPC end the call when no more can come. The
  // library runs no reaction before these return, so the lock is held.
  void Advance();

  const OnAnswer on_answer_;
  grpc::ClientContext context_;
  v1::StreamBlocksResponse read_;  // gRPC's while a read is under way
  grpc::ByteBuffer write_;         // gRPC's while a write is under way

  std::mutex mutex_;
  std::condition_variable ended_;  // done_ is set
  // Guarded by `mutex_` from here on.
  std::deque<grpc::ByteBuffer> unsent_;
  std::unordered_set<uint64_t> in_flight_;
  bool writing_ = false;
  bool closing_ = false;  // nothing more is sent
  bool broken_ = false;   // nothing more is read
  bool held_ = true;      // gRPC keeps the call for operations from outside
  bool done_ = false;
  absl::Status status_;
};

}  // namespace fuseblock::client
