// Calls one block of a running server: asks what it takes, sends rows of that width and dtype,
// prints what comes back, or why nothing does.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "client/cpp/client.h"

namespace {

namespace client = fuseblock::client;
namespace v1 = fuseblock::v1;

constexpr int64_t kRows = 4;

// Numbers as a block's dtype has them on the wire. BF16 is the upper half of a float; these numbers
// have nothing in the lower.
std::vector<uint8_t> Encode(const std::vector<float>& values, v1::DataType dtype) {
  const size_t size = dtype == v1::DATA_TYPE_FP32 ? 4 : 2;
  std::vector<uint8_t> bytes(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]) >> (32 - 8 * size);
    std::memcpy(&bytes[i * size], &bits, size);
  }
  return bytes;
}

float Decode(const std::byte* bytes, v1::DataType dtype) {
  const size_t size = dtype == v1::DATA_TYPE_FP32 ? 4 : 2;
  uint32_t bits = 0;
  std::memcpy(&bits, bytes, size);
  return std::bit_cast<float>(bits << (32 - 8 * size));
}

absl::Status Call(client::Client& server, const std::string& name) {
  const absl::StatusOr<v1::BlockInfo> block = server.GetBlock(name);
  if (!block.ok()) return block.status();
  std::printf("%s: %s\n", block->name().c_str(), block->formula().c_str());
  const v1::TensorSpec& input = block->inputs(0);
  const auto dtype = static_cast<v1::DataType>(input.data_types(0));
  if (dtype != v1::DATA_TYPE_FP32 && dtype != v1::DATA_TYPE_BF16) {
    return absl::InvalidArgumentError("this example sends FP32 and BF16, got a block of " +
                                      v1::DataType_Name(dtype));
  }

  const int64_t width = block->hidden_size();
  std::vector<float> values(static_cast<size_t>(kRows * width));
  for (size_t i = 0; i < values.size(); ++i) values[i] = (static_cast<int>(i % 17) - 8) / 8.0f;
  const std::vector<uint8_t> bytes = Encode(values, dtype);
  const client::Request request(name,
                                {{input.name(), dtype, {kRows, width}, client::Bytes(bytes)}});

  client::CallOptions options;
  options.timeout = absl::Seconds(10);
  options.timings = true;
  const absl::StatusOr<client::Answer> answer = server.Run(request, options);
  if (!answer.ok()) return answer.status();
  const client::Tensor& y = answer->outputs[0];
  const size_t size = y.data.size() / values.size();
  std::printf("%s[0, :4] =", y.name.c_str());
  for (size_t i = 0; i < 4; ++i) std::printf(" %g", Decode(y.data.data() + i * size, y.data_type));
  std::printf("\nanswered by %s, revision %s, compute %.0f us\n", answer->backend.c_str(),
              answer->revision.c_str(), answer->timings_us.at("compute"));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: call_block HOST:PORT BLOCK\n");
    return 2;
  }
  client::Client server(argv[1]);
  const absl::Status status = Call(server, argv[2]);
  if (status.ok()) return 0;
  const client::Error error = client::ErrorOf(status);
  std::fprintf(stderr, "call_block: %s %s\n", error.reason.c_str(), error.message.c_str());
  if (error.retry_after > absl::ZeroDuration()) {
    std::fprintf(stderr, "try again after %s\n", absl::FormatDuration(error.retry_after).c_str());
  }
  return 1;
}
