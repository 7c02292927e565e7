// What the client library writes and reads: requests as protobuf would have them, errors with their
// details.
#include "client/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/encoded.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fuseblock::client {
namespace {

using ::testing::ElementsAre;

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

v1::RunBlockRequest Message(const std::vector<Tensor>& tensors) {
  v1::RunBlockRequest message;
  message.set_block("m.layers.0.ffn_norm");
  message.set_revision("3");
  for (const Tensor& tensor : tensors) {
    v1::Tensor* input = message.add_inputs();
    input->set_name(tensor.name);
    input->set_data_type(tensor.data_type);
    for (const int64_t extent : tensor.shape) input->add_shape(extent);
    input->set_data(tensor.data.data(), tensor.data.size());
  }
  return message;
}

TEST(RequestTest, IsWhatProtobufWouldWrite) {
  const std::string x(1000, 'x'), r(24, 'r');
  const Tensor full = {"x", v1::DATA_TYPE_BF16, {2, 250}, Bytes(x)};
  const Tensor small = {"residual", v1::DATA_TYPE_FP32, {6}, Bytes(r)};
  const Tensor empty = {"ids", v1::DATA_TYPE_INT64, {0}, {}};
  for (const std::vector<Tensor>& tensors : std::vector<std::vector<Tensor>>{
           {}, {full}, {empty}, {full, small}, {empty, full}, {small, empty}}) {
    const v1::RunBlockRequest message = Message(tensors);
    const Request request(message.block(), tensors, message.revision());
    const std::string expected = message.SerializeAsString();
    EXPECT_EQ(BytesOf(request.encoded().Unary()), expected);
    EXPECT_EQ(request.size(), expected.size());

    v1::StreamBlocksRequest stream;
    ASSERT_TRUE(stream.ParseFromString(BytesOf(request.encoded().OnStream(7, 1500))));
    EXPECT_EQ(stream.request_id(), 7u);
    EXPECT_EQ(stream.timeout_us(), 1500u);
    EXPECT_EQ(stream.request().SerializeAsString(), expected);
  }
}

TEST(RequestTest, OutlivesTheTensors) {
  auto x = std::make_unique<std::string>(5000, 'x');
  const Request request("b", {{"x", v1::DATA_TYPE_FP32, {1250}, Bytes(*x)}});
  x.reset();
  const Request copy = request;
  v1::RunBlockRequest message;
  ASSERT_TRUE(message.ParseFromString(BytesOf(copy.encoded().Unary())));
  EXPECT_EQ(message.inputs(0).data(), std::string(5000, 'x'));
}

TEST(AnswerTest, OutputsLiveInTheAnswer) {
  v1::RunBlockResponse response;
  v1::Tensor* output = response.add_outputs();
  output->set_name("y");
  output->set_data_type(v1::DATA_TYPE_BF16);
  output->add_shape(2);
  output->add_shape(50);
  output->set_data(std::string(200, 'y'));
  response.set_backend("cuda:0");
  response.set_revision("2");
  Answer answer = AnswerFrom(std::move(response));
  const Answer copy = answer;
  answer = {};
  ASSERT_EQ(copy.outputs.size(), 1u);
  EXPECT_EQ(copy.outputs[0].name, "y");
  EXPECT_THAT(copy.outputs[0].shape, ElementsAre(2, 50));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(copy.outputs[0].data.data()),
                        copy.outputs[0].data.size()),
            std::string(200, 'y'));
  EXPECT_EQ(copy.backend, "cuda:0");
  EXPECT_EQ(copy.revision, "2");
}

TEST(ErrorTest, ReadsTheDetails) {
  google::rpc::ErrorInfo info;
  info.set_reason("QUEUE_FULL");
  info.set_domain("fuseblock");
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  retry.mutable_retry_delay()->set_nanos(500000000);
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  details.add_details()->PackFrom(retry);
  const Error error = ErrorOf(ErrorFrom(
      grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", details.SerializeAsString())));
  EXPECT_EQ(error.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(error.message, "full");
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_EQ(error.retry_after, absl::Milliseconds(1500));
}

TEST(ErrorTest, WithoutDetailsOrWithDamagedOnes) {
  for (const char* details : {"", "\xff\xff damaged"}) {
    const Error error =
        ErrorOf(ErrorFrom(grpc::Status(grpc::StatusCode::UNAVAILABLE, "no connection", details)));
    EXPECT_EQ(error.code, absl::StatusCode::kUnavailable);
    EXPECT_EQ(error.reason, "");
    EXPECT_EQ(error.retry_after, absl::ZeroDuration());
  }
}

TEST(ErrorTest, OfAStreamsAnswer) {
  v1::StreamBlocksResponse response;
  response.set_code(8);
  response.set_message("full");
  response.set_reason("MEMORY");
  response.set_retry_after_ms(20);
  const Error error = ErrorOf(ErrorFrom(response));
  EXPECT_EQ(error.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(error.reason, "MEMORY");
  EXPECT_EQ(error.retry_after, absl::Milliseconds(20));
}

TEST(ClientTest, SaysWhenThereIsNoServer) {
  Client client("unix:/no/such/socket");
  const std::string x(4, 'x');
  const auto answer = client.Run(Request("b", {{"x", v1::DATA_TYPE_FP32, {1}, Bytes(x)}}));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorOf(answer.status()).reason, "");
  EXPECT_EQ(client.ListBlocks().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client.Health().status().code(), absl::StatusCode::kUnavailable);
  absl::Status ended;
  auto stream = client.OpenStream(
      {}, [&](uint64_t, absl::StatusOr<Answer> refused) { ended = refused.status(); });
  stream->Send(1, Request("b", {}));
  EXPECT_EQ(stream->Finish().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable);
}

// No other channel lives in this process: each client's end is the end of gRPC's own threads.
TEST(ClientTest, EndsRightAfterItsLastAnswer) {
  for (int i = 0; i < 300; ++i) {
    Client client("unix:/no/such/socket");
    EXPECT_EQ(client.Run(Request("b", {})).status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(ClientTest, CallbacksHaveReturnedWhenItIsGone) {
  for (int i = 0; i < 100; ++i) {
    std::atomic<int> answered = 0;
    std::vector<Call> calls;  // outlive the client
    {
      Client client("unix:/no/such/socket");
      for (int k = 0; k < 3; ++k) {
        calls.push_back(client.RunAsync(Request("b", {}), {}, [&](absl::StatusOr<Answer> answer) {
          EXPECT_FALSE(answer.ok());
          std::this_thread::yield();
          ++answered;
        }));
      }
    }
    EXPECT_EQ(answered, 3);
    for (Call& call : calls) call.Cancel();
  }
}

TEST(ClientTest, MayEndInACallback) {
  for (int i = 0; i < 300; ++i) {
    // Another address each: gRPC shares connections, and pauses between attempts.
    auto client = std::make_shared<Client>(absl::StrCat("unix:/no/such/socket", i));
    std::promise<absl::Status> ended;
    Client& calling = *client;
    calling.RunAsync(Request("b", {}), {},
                     [&ended, last = std::move(client)](absl::StatusOr<Answer> answer) mutable {
                       last.reset();
                       ended.set_value(answer.status());
                     });
    EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kUnavailable);
  }
}

}  // namespace
}  // namespace fuseblock::client
