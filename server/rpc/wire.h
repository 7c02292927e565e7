// The protobuf wire format of the two hot requests, walked by hand over a message that lies in
// several pieces. Header fields are copied out; a tensor's data is left where it is and described
// as pieces. It takes and refuses what protobuf's own parser does (a test compares the two), except
// that the bounds below are checked before memory is taken for what a message claims.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace fuseblock {

// Eight leading axes and the columns.
inline constexpr int kWireRankMax = 9;
// More than any block has, so that a message can't make the server keep a list of millions.
inline constexpr int kWireInputsMax = 8;
// Names of blocks and tensors, and revisions.
inline constexpr size_t kWireNameBytesMax = 256;

using WirePiece = absl::Span<const std::byte>;

// fuseblock.v1.Tensor.
struct WireTensor {
  std::string name;
  int32_t data_type = 0;
  int64_t rank = 0;                           // as sent, also where it is above kWireRankMax
  std::array<int64_t, kWireRankMax> shape{};  // the first `rank` of them
  size_t bytes = 0;                           // of data
  absl::InlinedVector<WirePiece, 2> data;     // in order, none empty
};

// fuseblock.v1.RunBlockRequest.
struct WireRequest {
  std::string block, revision;
  absl::InlinedVector<WireTensor, 1> inputs;
};

// fuseblock.v1.StreamBlocksRequest.
struct WireStreamRequest {
  uint64_t request_id = 0;
  WireRequest request;
  uint64_t timeout_us = 0;
};

// Parse a whole message into a default-constructed *out, whose pieces point into `message`.
// Errors, BAD_TENSOR: malformed, naming the byte; or above a bound, naming it. What was read before
// an error is in *out, so that an answer can name the request.
absl::Status ParseWire(absl::Span<const WirePiece> message, WireRequest* out);
absl::Status ParseWire(absl::Span<const WirePiece> message, WireStreamRequest* out);

// A message being written, or the part of it around tensors' bytes, which fits in place.
using WireBytes = absl::InlinedVector<char, 128>;
inline std::string_view View(const WireBytes& bytes) { return {bytes.data(), bytes.size()}; }

// Fields append to what is there. Tags are (field << 3 | wire type).
void AppendVarint(uint64_t value, WireBytes* out);
void AppendTag(int field, int wire_type, WireBytes* out);
void AppendBytes(std::string_view bytes, WireBytes* out);
// A string or bytes field; nothing when it is empty, as proto3 has it.
void AppendString(int field, std::string_view value, WireBytes* out);

}  // namespace fuseblock
