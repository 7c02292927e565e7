// The bare transport that the server is measured against: RunBlock's message comes back as it came,
// after one copy into a buffer of a pool, from which the answer's slice is sent. That is the least
// that a server on this API does which computes on contiguous memory.
//
//   fuseblock_bench_echo HOST:PORT|unix:PATH [BUSY_US]     until its standard input ends
//
// BUSY_US: with each message it is busy for so long before it answers, on the thread that read it.
// What one request then takes is what it would with work that costs nothing but its time: threads
// that waited longer for one another also wake up later.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/rpc/block_service.h"
#include "server/rpc/server.h"

namespace fuseblock::testing {
namespace {

// Buffers that are used again, as a server's staging is.
class BufferPool {
 public:
  struct Buffer {
    BufferPool* pool;
    size_t bytes;
    std::unique_ptr<char[]> data;
  };

  std::unique_ptr<Buffer> Take(size_t bytes) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (std::unique_ptr<Buffer>& held : free_) {
        if (held->bytes < bytes) continue;
        std::unique_ptr<Buffer> taken = std::exchange(held, std::move(free_.back()));
        free_.pop_back();
        return taken;
      }
    }
    return std::make_unique<Buffer>(Buffer{this, bytes, std::make_unique<char[]>(bytes)});
  }
  static void Return(void* buffer) {
    std::unique_ptr<Buffer> returned(static_cast<Buffer*>(buffer));
    BufferPool& pool = *returned->pool;
    std::lock_guard<std::mutex> lock(pool.mutex_);
    pool.free_.push_back(std::move(returned));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> free_;
};

class EchoService final : public RawBlockService {
 public:
  explicit EchoService(std::chrono::microseconds busy) : busy_(busy) {}

  grpc::ServerUnaryReactor* RunBlock(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    std::vector<grpc::Slice> slices;
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (grpc::Status status = request->Dump(&slices); !status.ok()) {
      reactor->Finish(status);
      return reactor;
    }
    std::unique_ptr<BufferPool::Buffer> buffer = pool_.Take(request->Length());
    size_t at = 0;
    for (const grpc::Slice& slice : slices) {
      std::memcpy(buffer->data.get() + at, slice.begin(), slice.size());
      at += slice.size();
    }
    // The receive buffers go back before the answer is written, or both would be held at once.
    slices.clear();
    const_cast<grpc::ByteBuffer*>(request)->Clear();
    char* data = buffer->data.get();
    const grpc::Slice answer(data, at, BufferPool::Return, buffer.release());
    *response = grpc::ByteBuffer(&answer, 1);
    const auto end = std::chrono::steady_clock::now() + busy_;
    while (std::chrono::steady_clock::now() < end) {
    }
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::chrono::microseconds busy_;
  BufferPool pool_;
};

int Main(const char* address, std::chrono::microseconds busy) {
  TuneProcess();
  EchoService service(busy);
  grpc::ServerBuilder builder;
  SetTransportArguments(builder);
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "%s: cannot listen there\n", address);
    return 1;
  }
  while (std::getchar() != EOF) {
  }
  server->Shutdown();
  return 0;
}

}  // namespace
}  // namespace fuseblock::testing

int main(int argc, char** argv) {
  char* end = nullptr;
  const std::chrono::microseconds busy(argc == 3 ? std::strtol(argv[2], &end, 10) : 0);
  const bool usable = argc == 2 || (argc == 3 && end != argv[2] && *end == '\0');
  if (usable) return fuseblock::testing::Main(argv[1], busy);
  std::fprintf(stderr, "usage: fuseblock_bench_echo HOST:PORT|unix:PATH [BUSY_US]\n");
  return 2;
}
