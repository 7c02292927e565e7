// Between wire messages and the engine: checks a request against its block, and builds an answer
// whose tensor bytes are the engine's own memory.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "fuseblock/v1/block_service.pb.h"
#include "server/engine/engine.h"
#include "server/model/served_block.h"
#include "server/rpc/wire.h"

namespace fuseblock {

// A raw message's slices, and views of them as the wire parser takes them. Holds the slices, so
// whatever points into them is valid as long as it.
struct RawMessage {
  std::vector<grpc::Slice> slices;  // one that is alone is in `only`
  grpc::Slice only;
  absl::InlinedVector<WirePiece, 2> pieces;
  size_t bytes = 0;

  // Takes references, copies nothing. INTERNAL when the buffer can't be read.
  static absl::StatusOr<std::shared_ptr<const RawMessage>> From(const grpc::ByteBuffer& buffer);
};

struct RequestLimits {
  int64_t tokens_max = 0;
  int64_t bytes_max = 0;  // of all tensors together
};

// What the request's form decides of the answer's: the axes before the columns, which the outputs
// get back, and whether the optional inputs came, without which the optional outputs do not exist.
struct AnswerForm {
  int axes = 0;
  std::array<int64_t, kWireRankMax> extent{};
  bool optional_outputs = true;
};

// A request that fits its block.
struct CheckedInputs {
  int64_t tokens = 0;  // product of the leading axes
  AnswerForm form;
  std::array<InputPayload, 2> inputs;  // in the block's order; pieces as in the wire request
};

// Checks names, dtypes, shapes and sizes; overflow is an error, not a wrap. Errors: BAD_TENSOR
// naming the tensor, what was expected and what came; TOO_LARGE naming the limit.
absl::StatusOr<CheckedInputs> CheckInputs(const ServedBlock& block, const RequestLimits& limits,
                                          const WireRequest& request);

// The wire's dtype, and back. nullopt for an unset or unknown one.
std::optional<DType> FromWire(int32_t data_type);
v1::DataType ToWire(DType dtype);

// A serialised message in pieces; those of tensors alias memory that they keep alive.
struct EncodedMessage {
  absl::InlinedVector<grpc::Slice, 4> slices;
  size_t bytes = 0;

  void AddHead(std::string_view head);  // copies
  void Add(grpc::Slice slice);
  // *buffer becomes the message and shares the slices' memory. Not a value to return: assigning a
  // buffer makes another one.
  void WriteTo(grpc::ByteBuffer* buffer) const;
};

// RunBlockResponse of an outcome that is OK: what protobuf would write, byte for byte. Each
// output's slices, one a piece, keep outcome.storage until the transport has sent them.
EncodedMessage EncodeResponse(const ServedBlock& block, const AnswerForm& form,
                              const Outcome& outcome);
// StreamBlocksResponse around a response, and one for a request that failed.
EncodedMessage EncodeStreamResponse(uint64_t request_id, EncodedMessage response);
EncodedMessage EncodeStreamError(uint64_t request_id, const absl::Status& status);

}  // namespace fuseblock
