// fuseblock.v1.BlockService: the hot RPCs as raw messages, the others as ordinary ones. Nothing
// here blocks: requests end in the engine's callbacks.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <vector>

#include "fuseblock/v1/block_service.grpc.pb.h"
#include "server/rpc/block_runner.h"

namespace fuseblock {

class StreamCall;

using RawBlockService = v1::BlockService::WithRawCallbackMethod_RunBlock<
    v1::BlockService::WithRawCallbackMethod_StreamBlocks<
        v1::BlockService::WithCallbackMethod_ListBlocks<
            v1::BlockService::WithCallbackMethod_GetBlock<v1::BlockService::Service>>>>;

class BlockService final : public RawBlockService {
 public:
  struct Options {
    RequestLimits limits;
    int stream_requests_max = 64;  // of one stream in flight; then it is read no further
  };

  // What it is given must outlive it.
  BlockService(const Options& options, Engine& engine, const BlockRegistry& registry,
               Metrics& metrics, Shadow& shadow);
  ~BlockService() override;

  // Ends every open stream as DRAINING, when what it has in flight is answered. Streams that open
  // later end at once.
  void EndStreams();

  grpc::ServerUnaryReactor* RunBlock(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StreamBlocks(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ListBlocks(grpc::CallbackServerContext* context,
                                       const v1::ListBlocksRequest* request,
                                       v1::ListBlocksResponse* response) override;
  grpc::ServerUnaryReactor* GetBlock(grpc::CallbackServerContext* context,
                                     const v1::GetBlockRequest* request,
                                     v1::GetBlockResponse* response) override;

 private:
  Options options_;
  const BlockRegistry& registry_;
  BlockRunner runner_;

  std::mutex mutex_;  // guards what follows
  bool ending_ = false;
  std::vector<std::weak_ptr<StreamCall>> streams_;
};

}  // namespace fuseblock
