// One StreamBlocks call: reads requests while fewer than its limit are in flight, writes answers
// one at a time as they come, and ends when the client has sent its last request and got its last
// answer.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "server/rpc/block_runner.h"

namespace fuseblock {

// Owns itself through `self_` from Create until gRPC's OnDone; the engine's callbacks share it, so
// that a late one finds it alive.
class StreamCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  static std::shared_ptr<StreamCall> Create(grpc::CallbackServerContext* context,
                                            const BlockRunner& runner, int requests_max);

  // Begins to read; or ends the call when its metadata is bad.
  void Start();
  // Takes no more requests, and ends as DRAINING when what is in flight is answered.
  void EndWhenIdle();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  StreamCall(grpc::CallbackServerContext* context, const BlockRunner& runner, int requests_max)
      : context_(context), runner_(runner), requests_max_(requests_max) {}

  void Accept(std::shared_ptr<const RawMessage> message);
  // Queues an answer for writing. named: the request held its id, which may now be used again.
  void Answer(uint64_t request_id, bool named, EncodedMessage message);
  // Does what the state allows: write the next answer, read on, finish. With the lock held.
  void Advance();

  grpc::CallbackServerContext* const context_;
  const BlockRunner& runner_;
  const size_t requests_max_;
  CallTerms terms_;         // of the stream; set before the first read
  grpc::ByteBuffer read_;   // gRPC's while a read is under way
  grpc::ByteBuffer write_;  // gRPC's while a write is under way

  // std::mutex here and elsewhere: ThreadSanitizer cannot see into the distribution's absl::Mutex.
  std::mutex mutex_;
  // Guarded by `mutex_` from here on.
  std::shared_ptr<StreamCall> self_;
  std::unordered_map<uint64_t, std::shared_ptr<CancelSwitch>> in_flight_;
  size_t unanswered_ = 0;               // in_flight_, and those refused for their id
  std::deque<EncodedMessage> answers_;  // not yet written
  bool started_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool finished_ = false;
  bool read_closed_ = false;  // the client sends no more
  bool broken_ = false;       // nobody reads answers any more
  bool ending_ = false;
  absl::Status refusal_;  // of the stream as a whole
};

}  // namespace fuseblock
