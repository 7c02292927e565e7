// StreamBlocks: answers matched by id in any order, errors that end only their own request, the
// bound on what one stream may have in flight, and how streams end.
#include <condition_variable>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "server/reason.h"
#include "tests/integration/rpc_fixture.h"

namespace fuseblock::testing {
namespace {

using ::testing::HasSubstr;

// The answers of one stream as they come.
class Answers {
 public:
  client::Stream::OnAnswer Collector() {
    return [this](uint64_t id, absl::StatusOr<client::Answer> answer) {
      std::lock_guard<std::mutex> lock(mutex_);
      EXPECT_TRUE(answers_.emplace(id, std::move(answer)).second) << id << " answered twice";
      order_.push_back(id);
      changed_.notify_all();
    };
  }
  absl::StatusOr<client::Answer> Await(uint64_t id) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return answers_.contains(id); });
    return answers_.at(id);
  }
  size_t size() {
    std::lock_guard<std::mutex> lock(mutex_);
    return answers_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, absl::StatusOr<client::Answer>> answers_;
  std::vector<uint64_t> order_;
};

class StreamTest : public RpcFixture {
 protected:
  client::Request Mlp(int64_t tokens, uint32_t seed) const {
    return client::Request(kMlp, {ToClient("x", X(tokens, seed))});
  }
  void ExpectBits(const absl::StatusOr<client::Answer>& answer, int64_t tokens, uint32_t seed) {
    ASSERT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(BytesOf(answer->outputs[0]), Alone(kMlp, {X(tokens, seed)})[0].bytes);
  }
};

TEST_F(StreamTest, MixesRequestsAndAnswersEach) {
  StartServer();
  Answers answers;
  auto stream = client_->OpenStream({}, answers.Collector());
  for (uint64_t id = 0; id < 100; ++id) {
    stream->Send(id, Mlp(static_cast<int64_t>(id % 7), static_cast<uint32_t>(id)));
  }
  EXPECT_EQ(stream->Finish(), absl::OkStatus());
  ASSERT_EQ(answers.size(), 100u);
  for (uint64_t id = 0; id < 100; ++id) {
    ExpectBits(answers.Await(id), static_cast<int64_t>(id % 7), static_cast<uint32_t>(id));
  }
}

TEST_F(StreamTest, AnErrorEndsOnlyItsRequest) {
  StartServer();
  Answers answers;
  auto stream = client_->OpenStream({}, answers.Collector());
  stream->Send(1, Mlp(2, 1));
  RowTensor wide = MakeRows(DType::kBF16, {2, 47}, 1);
  stream->Send(2, client::Request(kMlp, {ToClient("x", wide)}));
  stream->Send(3, client::Request("no.such.block", {ToClient("x", wide)}));
  stream->Send(4, Mlp(3, 4));
  EXPECT_EQ(stream->Finish(), absl::OkStatus());
  ExpectBits(answers.Await(1), 2, 1);
  const client::Error bad = client::ErrorOf(answers.Await(2).status());
  EXPECT_EQ(bad.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.reason, "BAD_TENSOR");
  EXPECT_EQ(bad.message, "x: expected [*, 48] BF16, got [2, 47] BF16");
  const client::Error missing = client::ErrorOf(answers.Await(3).status());
  EXPECT_EQ(missing.code, absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.reason, "BLOCK_NOT_FOUND");
  ExpectBits(answers.Await(4), 3, 4);
}

// The wire itself, for what the client library does not let happen.
class RawStreamTest : public StreamTest {
 protected:
  using RawStream =
      grpc::ClientReaderWriterInterface<v1::StreamBlocksRequest, v1::StreamBlocksResponse>;
  v1::StreamBlocksRequest Message(uint64_t id, int64_t tokens) const {
    v1::StreamBlocksRequest message;
    message.set_request_id(id);
    *message.mutable_request() = MlpRequest(tokens, static_cast<uint32_t>(tokens));
    return message;
  }
  void Open() {
    context_.set_deadline(absl::ToChronoTime(HangTime()));
    stream_ = stub_->StreamBlocks(&context_);
  }
  void Write(const v1::StreamBlocksRequest& message) { ASSERT_TRUE(stream_->Write(message)); }
  v1::StreamBlocksResponse Read() {
    v1::StreamBlocksResponse response;
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }
  // Nothing more comes, and the stream ends well.
  void ExpectEnd() {
    stream_->WritesDone();
    v1::StreamBlocksResponse response;
    EXPECT_FALSE(stream_->Read(&response));
    EXPECT_TRUE(stream_->Finish().ok());
  }

  grpc::ClientContext context_;
  std::unique_ptr<RawStream> stream_;
};

TEST_F(RawStreamTest, AnIdInFlightIsRefusedAndTheFirstGoesOn) {
  StartServer();
  faults_->Hold(kCpu);
  Open();
  Write(Message(5, 2));
  faults_->AwaitHeld(kCpu, 1);
  Write(Message(5, 3));
  v1::StreamBlocksResponse response = Read();
  EXPECT_EQ(response.request_id(), 5u);
  EXPECT_EQ(response.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(response.reason(), "BAD_TENSOR");
  EXPECT_EQ(response.message(), "request_id: 5 is in flight already");
  faults_->Release(kCpu);
  response = Read();
  EXPECT_EQ(response.code(), 0);
  EXPECT_EQ(response.response().outputs(0).data(), Alone(kMlp, {X(2, 2)})[0].bytes);
  // An answered id may be used again.
  Write(Message(5, 4));
  response = Read();
  EXPECT_EQ(response.code(), 0);
  ExpectEnd();
}

TEST_F(RawStreamTest, AStreamReadsNoFurtherThanItsLimit) {
  rpc_options_.blocks.stream_requests_max = 3;
  StartServer();
  faults_->Hold(kCpu);
  Open();
  for (uint64_t id = 1; id <= 6; ++id) Write(Message(id, 1));
  Await("inflight_requests", 3);
  // Another connection's request comes after the stream's; when it has been admitted, the stream's
  // fourth would have been too.
  std::thread other([&] { ExpectStillServing(); });
  Await("inflight_requests", 4);
  faults_->Release(kCpu);
  other.join();
  for (int i = 0; i < 6; ++i) Read();
  ExpectEnd();
}

TEST_F(RawStreamTest, EachRequestHasItsOwnTime) {
  StartServer();
  faults_->Hold(kCpu);
  Open();
  Write(Message(1, 1));
  faults_->AwaitHeld(kCpu, 1);
  v1::StreamBlocksRequest hurried = Message(2, 2);
  hurried.set_timeout_us(1000);
  Write(hurried);
  v1::StreamBlocksResponse response = Read();
  EXPECT_EQ(response.request_id(), 2u);
  EXPECT_EQ(response.reason(), "EXPIRED");
  EXPECT_EQ(response.code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  faults_->Release(kCpu);
  v1::StreamBlocksRequest patient = Message(3, 3);
  patient.set_timeout_us(std::numeric_limits<uint64_t>::max());
  Write(patient);
  for (int i = 0; i < 2; ++i) {
    response = Read();
    EXPECT_EQ(response.code(), 0) << response.message();
  }
  ExpectEnd();
}

TEST_F(RawStreamTest, AStreamThatGoesTakesItsRequestsWithIt) {
  StartServer();
  faults_->Hold(kCpu);
  Open();
  // The first is in the lane, alone, before the others come: they wait.
  Write(Message(1, 1));
  faults_->AwaitHeld(kCpu, 1);
  for (uint64_t id = 2; id <= 4; ++id) Write(Message(id, 1));
  Await("inflight_requests", 4);
  context_.TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // What waited is dropped, and so is what comes of what runs.
  Await("inflight_requests", 0);
  faults_->Release(kCpu);
  ExpectStillServing();
}

TEST_F(RawStreamTest, AMessageThatIsNoneIsAnsweredToo) {
  StartServer();
  Open();
  Write(v1::StreamBlocksRequest());  // no id, no request
  v1::StreamBlocksResponse response = Read();
  EXPECT_EQ(response.reason(), "BLOCK_NOT_FOUND");
  Write(Message(1, 1));
  response = Read();
  EXPECT_EQ(response.code(), 0);
  ExpectEnd();
}

TEST_F(RawStreamTest, BadMetadataEndsTheStream) {
  StartServer();
  context_.AddMetadata("fuseblock-priority", "high");
  Open();
  const grpc::Status status = stream_->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("fuseblock-priority"));
  EXPECT_EQ(Counter(R"(errors_total{category="bad_tensor"})"), 1);
}

TEST_F(RawStreamTest, AClientThatDoesNotReadHoldsUpItsOwnStreamOnly) {
  rpc_options_.blocks.stream_requests_max = 3;
  StartServer();
  Open();
  // Answers of 384 kB: more than the transport takes without a reader, a window and a buffer of 64
  // KiB each, so that none is written out.
  std::thread writer([&] {
    for (uint64_t id = 1; id <= 8; ++id) {
      v1::StreamBlocksRequest message = Message(id, 4000);
      message.mutable_request()->set_block("m.layers.0.attn_norm");
      Write(message);
    }
  });
  const std::string answered =
      R"(requests_total{block="m.layers.0.attn_norm",code="OK",rpc="StreamBlocks"})";
  Await(answered, 3);
  for (int i = 0; i < 8; ++i) ExpectStillServing();
  EXPECT_EQ(Counter(answered), 3);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Read().code(), 0);
  writer.join();
  ExpectEnd();
}

TEST_F(RawStreamTest, AtTheStreamsDeadlineItsRequestsExpire) {
  constexpr char kExpired[] = R"(shed_total{block="m.layers.0.mlp",cause="expired"})";
  StartServer();
  faults_->Hold(kCpu);
  client::CallOptions forever;
  std::promise<absl::Status> first;
  client_->RunAsync(Mlp(1, 1), forever, [&](absl::StatusOr<client::Answer> answer) {
    first.set_value(answer.status());
  });
  faults_->AwaitHeld(kCpu, 1);
  // On a busy machine the deadline may pass before the request arrives: longer ones follow.
  for (absl::Duration deadline = absl::Milliseconds(100); Counter(kExpired) == 0; deadline *= 2) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
    const std::unique_ptr<RawStream> stream = stub_->StreamBlocks(&context);
    v1::StreamBlocksRequest patient = Message(1, 2);
    patient.set_timeout_us(absl::ToInt64Microseconds(absl::Hours(1)));
    stream->Write(patient);
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    Await("inflight_requests", 1);
  }
  faults_->Release(kCpu);
  EXPECT_EQ(first.get_future().get(), absl::OkStatus());
}

TEST_F(RawStreamTest, ShutdownTellsAnIdleStreamWhyItEnds) {
  StartServer();
  Open();
  Write(Message(1, 1));
  EXPECT_EQ(Read().code(), 0);
  std::thread shutdown([&] { rpc_->Shutdown(absl::InfiniteFuture()); });
  v1::StreamBlocksResponse response;
  EXPECT_FALSE(stream_->Read(&response));
  const grpc::Status status = stream_->Finish();
  shutdown.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "DRAINING");
  EXPECT_GT(DetailsOf(status).retry_ms, 0);
  EXPECT_EQ(Counter(R"(errors_total{category="draining"})"), 1);
}

TEST_F(StreamTest, ShutdownAnswersWhatIsInFlightAndEndsTheStream) {
  StartServer();
  faults_->Hold(kCpu);
  Answers answers;
  auto stream = client_->OpenStream({}, answers.Collector());
  stream->Send(1, Mlp(2, 1));
  faults_->AwaitHeld(kCpu, 1);
  stream->Send(2, Mlp(3, 2));
  Await("inflight_requests", 2);
  std::thread drain([&] {
    engine_->Drain(absl::InfiniteFuture());
    rpc_->Shutdown(absl::InfiniteFuture());
  });
  // New requests are refused outside the stream and on it, while the lane is still held.
  client::CallOptions hurried;
  hurried.timeout = absl::Milliseconds(50);
  while (client::ErrorOf(client_->Run(Mlp(1, 3), hurried).status()).reason != "DRAINING") {
  }
  stream->Send(3, Mlp(1, 3));
  EXPECT_EQ(client::ErrorOf(answers.Await(3).status()).reason, "DRAINING");
  faults_->Release(kCpu);
  const absl::Status end = stream->Finish();
  drain.join();
  ExpectBits(answers.Await(1), 2, 1);
  ExpectBits(answers.Await(2), 3, 2);
  EXPECT_TRUE(end.ok() || end.code() == absl::StatusCode::kUnavailable) << end;
}

TEST_F(StreamTest, TheClientRefusesWhatTheStreamCanNotCarry) {
  StartServer();
  faults_->Hold(kCpu);
  Answers answers;
  auto stream = client_->OpenStream({}, answers.Collector());
  stream->Send(1, Mlp(1, 1));
  std::promise<absl::Status> refused;
  Answers others;
  auto second = client_->OpenStream({}, [&](uint64_t, absl::StatusOr<client::Answer> answer) {
    if (!answer.ok()) refused.set_value(answer.status());
  });
  second->Send(9, Mlp(1, 1));
  second->Send(9, Mlp(1, 2));
  EXPECT_EQ(refused.get_future().get().code(), absl::StatusCode::kInvalidArgument);
  faults_->Release(kCpu);
  EXPECT_EQ(stream->Finish(), absl::OkStatus());
  EXPECT_EQ(second->Finish(), absl::OkStatus());
  stream->Send(2, Mlp(1, 1));
  EXPECT_EQ(answers.Await(2).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(StreamTest, DroppingAStreamAnswersWhatItHad) {
  StartServer();
  faults_->Hold(kCpu);
  Answers answers;
  auto stream = client_->OpenStream({}, answers.Collector());
  stream->Send(1, Mlp(1, 1));
  faults_->AwaitHeld(kCpu, 1);
  stream.reset();
  EXPECT_EQ(answers.Await(1).status().code(), absl::StatusCode::kCancelled);
  faults_->Release(kCpu);
}

}  // namespace
}  // namespace fuseblock::testing
