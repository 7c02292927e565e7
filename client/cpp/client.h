// The C++ client: runs blocks on a Fuseblock server.
//
//   using namespace fuseblock::client;
//   Client client("127.0.0.1:8001");
//   std::vector<float> x(4 * 576);
//   Request request("m.layers.0.mlp", {{"x", fuseblock::v1::DATA_TYPE_FP32, {4, 576}, Bytes(x)}});
//   absl::StatusOr<Answer> answer = client.Run(request);
//   if (answer.ok()) {
//     answer->outputs[0];  // name "y", shape [4, 576], data: the bytes
//   } else {
//     ErrorOf(answer.status()).reason;  // "QUEUE_FULL"
//   }
//
// Everything here is thread-safe unless it says otherwise. Nothing throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fuseblock/v1/block_service.pb.h"

namespace fuseblock::client {

// A dense tensor that somebody else holds: row-major, little-endian, no padding.
struct Tensor {
  std::string name;  // as GetBlock lists it: "x", "residual", "ids", "y"
  v1::DataType data_type = v1::DATA_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape;        // [tokens, hidden] or any more leading axes
  absl::Span<const std::byte> data;  // product(shape) * size of the dtype
};

// The bytes of any contiguous range of numbers.
template <typename Range>
absl::Span<const std::byte> Bytes(const Range& range) {
  return {reinterpret_cast<const std::byte*>(range.data()), range.size() * sizeof(*range.data())};
}

// One block's inputs, encoded once and sent any number of times. It holds a copy of the tensors'
// bytes, so they may be freed when the constructor returns. Copying a Request copies no tensor.
// Nothing is checked here: the server knows the block and answers with what it expected.
class Request {
 public:
  // revision: empty for the one that answers.
  Request(std::string_view block, absl::Span<const Tensor> inputs, std::string_view revision = "");
  Request(std::string_view block, std::initializer_list<Tensor> inputs,
          std::string_view revision = "")
      : Request(block, absl::MakeConstSpan(inputs.begin(), inputs.size()), revision) {}

  // Bytes on the wire.
  size_t size() const;

  struct Encoded;
  const Encoded& encoded() const { return *encoded_; }

 private:
  std::shared_ptr<const Encoded> encoded_;
};

// The outputs of one run. Move or copy it freely: `outputs` point into memory that it shares.
struct Answer {
  std::vector<Tensor> outputs;               // in the block's order
  std::string revision;                      // that answered
  std::string backend;                       // that answered: "cpu", "cuda:0"
  std::map<std::string, double> timings_us;  // phase -> microseconds; only when asked for, unary
  std::shared_ptr<const void> storage;       // keeps outputs' data valid
};

// What a failed call says, for programs. `reason` is the table in the documentation: "QUEUE_FULL",
// "BAD_TENSOR", ...; empty when the failure is not the server's (no connection, a local deadline).
struct Error {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
  std::string reason;
  absl::Duration retry_after = absl::ZeroDuration();  // zero: a retry is not advised
};
// Precondition: !status.ok().
Error ErrorOf(const absl::Status& status);

struct CallOptions {
  absl::Duration timeout = absl::InfiniteDuration();  // becomes the gRPC deadline
  int priority = 1;                                   // 0 highest .. 3
  std::string tenant = {};                            // where the server has no tokens configured
  bool timings = false;                               // ask for the phase times
};

// A call in flight. Dropping the handle leaves the call running.
class Call {
 public:
  // The call ends as CANCELLED unless it has ended already. Never blocks.
  void Cancel();

  struct State;
  explicit Call(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// Requests and answers over one stream; answers come in any order. A request's error is that
// request's answer; when the stream itself breaks, every request in flight is answered with that.
class Stream {
 public:
  // Called once per sent request, from one of the library's threads, one call at a time, or from
  // Send when it refuses. It may call Send; it must not block for long, which would hold up the
  // stream's other answers, and must neither call Finish nor destroy a stream.
  using OnAnswer = std::function<void(uint64_t request_id, absl::StatusOr<Answer> answer)>;

  // Cancels what is in flight and waits for its answers.
  ~Stream();

  // Queues the request; never blocks. Refuses, by an answer, a request_id that is in flight on this
  // stream (INVALID_ARGUMENT), and whatever is sent after Finish or after the stream's end.
  // timeout: from its arrival at the server; infinite: the stream's deadline.
  void Send(uint64_t request_id, const Request& request,
            absl::Duration timeout = absl::InfiniteDuration());
  // No more requests; waits for the answers of those sent and returns how the stream ended.
  absl::Status Finish();
  // Ends the stream as CANCELLED.
  void Cancel();

  class Reactor;
  explicit Stream(std::shared_ptr<Reactor> reactor) : reactor_(std::move(reactor)) {}

 private:
  std::shared_ptr<Reactor> reactor_;
};

enum class HealthState { kUnknown, kServing, kNotServing };

// A connection to one server, made at the first call and remade when it breaks.
class Client {
 public:
  // target: "HOST:PORT", "unix:PATH" or any gRPC target.
  explicit Client(const std::string& target);
  // Cancels the calls in flight and waits until their callbacks have returned. In a callback, or by
  // what a callback held, it may go too: then it waits for nothing. Destroy its streams first.
  ~Client();

  // Blocks until the answer is there. Errors: the server's, see ErrorOf.
  absl::StatusOr<Answer> Run(const Request& request, const CallOptions& options = {});
  // Returns at once; calls done exactly once from one of the library's threads. done must not
  // block, and so must not destroy a stream.
  Call RunAsync(const Request& request, const CallOptions& options,
                absl::AnyInvocable<void(absl::StatusOr<Answer>) &&> done);
  // Opens a stream; options.timeout bounds the whole stream, options.timings is not used.
  std::unique_ptr<Stream> OpenStream(const CallOptions& options, Stream::OnAnswer on_answer);

  // The blocks whose name starts with prefix, by name.
  absl::StatusOr<std::vector<v1::BlockInfo>> ListBlocks(const std::string& prefix = "",
                                                        const CallOptions& options = {});
  // NOT_FOUND when there is no such block or revision.
  absl::StatusOr<v1::BlockInfo> GetBlock(const std::string& block, const std::string& revision = "",
                                         const CallOptions& options = {});
  // service: "" for the server, or a block's name. NOT_FOUND for a name that is not served.
  absl::StatusOr<HealthState> Health(const std::string& service = "",
                                     const CallOptions& options = {});

 private:
  struct Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace fuseblock::client
