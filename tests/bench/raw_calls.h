// RunBlock called with one encoded request, over and over, as cheaply as gRPC's C++ client can: raw
// messages on one completion queue, nothing parsed. Whoever answers, the client's own cost is the
// same.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/encoded.h"

namespace fuseblock::testing {

inline size_t ElementBytes(const std::string& dtype) { return dtype == "fp32" ? 4 : 2; }

// One input "x" of that many rows, filled with a small positive number. dtype: fp32, fp16 or bf16.
inline grpc::ByteBuffer MadeUpRequest(const std::string& block, int64_t tokens, int64_t columns,
                                      const std::string& dtype) {
  const v1::DataType data_type = dtype == "fp32"   ? v1::DATA_TYPE_FP32
                                 : dtype == "fp16" ? v1::DATA_TYPE_FP16
                                                   : v1::DATA_TYPE_BF16;
  const std::string x(static_cast<size_t>(tokens * columns) * ElementBytes(dtype), '\x3c');
  return client::Request(block, {{"x", data_type, {tokens, columns}, client::Bytes(x)}})
      .encoded()
      .Unary();
}

struct RawCall {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer response;
  grpc::Status status;
  std::chrono::steady_clock::time_point began;
};

class RawCaller {
 public:
  // Connects that many channels, each with a connection of its own.
  RawCaller(const std::string& address, int channels) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (1 << 24) - 1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    for (int i = 0; i < channels; ++i) {
      const auto channel =
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
      connected_ = connected_ && channel->WaitForConnected(std::chrono::system_clock::now() +
                                                           std::chrono::seconds(10));
      stubs_.push_back(std::make_unique<grpc::GenericStub>(channel));
    }
  }
  ~RawCaller() {
    queue_.Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue_.Next(&tag, &ok);) {
    }
  }

  bool connected() const { return connected_; }
  // Where calls end: their tags are the RawCall.
  grpc::CompletionQueue& queue() { return queue_; }

  // Sends `request` on the next channel in turn, in call.context when the caller has made one.
  // Not thread-safe.
  void Start(const grpc::ByteBuffer& request, RawCall& call) {
    if (call.context == nullptr) call.context = std::make_unique<grpc::ClientContext>();
    call.response.Clear();
    call.began = std::chrono::steady_clock::now();
    call.reader = stubs_[next_++ % stubs_.size()]->PrepareUnaryCall(
        call.context.get(), "/fuseblock.v1.BlockService/RunBlock", request, &queue_);
    call.reader->StartCall();
    call.reader->Finish(&call.response, &call.status, &call);
  }

 private:
  bool connected_ = true;
  size_t next_ = 0;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
};

}  // namespace fuseblock::testing
