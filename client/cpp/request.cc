// Requests as they go over the wire: heads written here, tensors' bytes in slices of their own.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "client/cpp/client.h"
#include "client/cpp/encoded.h"

namespace fuseblock::client {
namespace {

using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

constexpr uint32_t LengthDelimited(int field) { return field << 3 | 2; }

// Appends what `write` writes.
template <typename Write>
void Append(std::string* out, Write&& write) {
  StringOutputStream stream(out);
  CodedOutputStream coded(&stream);
  write(coded);
}

// A Tensor message up to its data's bytes, which follow.
std::string TensorHead(const Tensor& tensor) {
  v1::Tensor head;
  head.set_name(tensor.name);
  head.set_data_type(tensor.data_type);
  for (const int64_t extent : tensor.shape) head.add_shape(extent);
  std::string bytes = head.SerializeAsString();
  if (!tensor.data.empty()) {
    Append(&bytes, [&](CodedOutputStream& out) {
      out.WriteTag(LengthDelimited(v1::Tensor::kDataFieldNumber));
      out.WriteVarint64(tensor.data.size());
    });
  }
  return bytes;
}

}  // namespace

Request::Request(std::string_view block, absl::Span<const Tensor> inputs,
                 std::string_view revision) {
  auto encoded = std::make_shared<Encoded>();
  const auto add = [&](const void* data, size_t size) {
    if (size == 0) return;
    encoded->slices.emplace_back(data, size);
    encoded->bytes += size;
  };
  v1::RunBlockRequest named;
  named.set_block(std::string(block));
  named.set_revision(std::string(revision));
  std::string head = named.SerializeAsString();
  for (const Tensor& tensor : inputs) {
    const std::string tensor_head = TensorHead(tensor);
    Append(&head, [&](CodedOutputStream& out) {
      out.WriteTag(LengthDelimited(v1::RunBlockRequest::kInputsFieldNumber));
      out.WriteVarint64(tensor_head.size() + tensor.data.size());
    });
    head += tensor_head;
    add(head.data(), head.size());
    add(tensor.data.data(), tensor.data.size());
    head.clear();
  }
  add(head.data(), head.size());
  encoded_ = std::move(encoded);
}

size_t Request::size() const { return encoded_->bytes; }

grpc::ByteBuffer Request::Encoded::Unary() const {
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer Request::Encoded::OnStream(uint64_t request_id, uint64_t timeout_us) const {
  v1::StreamBlocksRequest envelope;
  envelope.set_request_id(request_id);
  envelope.set_timeout_us(timeout_us);
  std::string head = envelope.SerializeAsString();
  Append(&head, [&](CodedOutputStream& out) {
    out.WriteTag(LengthDelimited(v1::StreamBlocksRequest::kRequestFieldNumber));
    out.WriteVarint64(bytes);
  });
  std::vector<grpc::Slice> all = {grpc::Slice(head.data(), head.size())};
  all.insert(all.end(), slices.begin(), slices.end());
  return grpc::ByteBuffer(all.data(), all.size());
}

}  // namespace fuseblock::client
