// What the client's sources share: requests on the wire, answers and errors from it.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include <vector>

#include "client/cpp/client.h"

namespace fuseblock::client {

// A RunBlockRequest in pieces.
struct Request::Encoded {
  std::vector<grpc::Slice> slices;
  size_t bytes = 0;

  grpc::ByteBuffer Unary() const;
  // As a StreamBlocksRequest.
  grpc::ByteBuffer OnStream(uint64_t request_id, uint64_t timeout_us) const;
};

// An answer that owns the response.
Answer AnswerFrom(v1::RunBlockResponse response);

// A failed call's status with its details, which ErrorOf reads. Precondition: !status.ok().
absl::Status ErrorFrom(const grpc::Status& status);
// The same for one answer of a stream.
absl::Status ErrorFrom(const v1::StreamBlocksResponse& response);

// Puts the options into the call's deadline and metadata.
void ApplyOptions(const CallOptions& options, grpc::ClientContext& context);

}  // namespace fuseblock::client
