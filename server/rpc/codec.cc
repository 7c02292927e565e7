#include "server/rpc/codec.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/reason.h"
#include "server/rpc/status.h"

namespace fuseblock {
namespace {

constexpr int kLengthDelimited = 2;
constexpr int kVarint = 0;
// Messages stay below 2 GiB; the rest is for their heads.
constexpr int64_t kResponseBytesMax = std::numeric_limits<int32_t>::max() - (1 << 16);

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status BadTensor(const std::string& message) {
  return MakeError(Reason::kBadTensor, message);
}

// "[*, 576] BF16", "[*] INT32 or INT64".
std::string Expected(const BlockTensor& tensor) {
  const auto name = [](std::string* out, DType dtype) { absl::StrAppend(out, View(Name(dtype))); };
  return absl::StrCat("[*", tensor.columns > 0 ? absl::StrCat(", ", tensor.columns) : "", "] ",
                      absl::StrJoin(tensor.dtypes, " or ", name));
}

// "[4, 575] BF16".
std::string Given(const WireTensor& tensor) {
  const std::optional<DType> dtype = FromWire(tensor.data_type);
  return absl::StrCat(
      "[", absl::StrJoin(absl::MakeConstSpan(tensor.shape).first(tensor.rank), ", "), "] ",
      dtype.has_value() ? std::string(Name(*dtype)) : absl::StrCat("dtype ", tensor.data_type));
}

// *product *= factor; false on overflow.
bool Multiply(int64_t factor, int64_t* product) {
  return !__builtin_mul_overflow(*product, factor, product);
}

// The product of extents; 0 if any is, whatever the others are. nullopt on overflow.
std::optional<int64_t> Product(absl::Span<const int64_t> extents) {
  int64_t product = 1;
  bool overflow = false;
  for (const int64_t extent : extents) {
    if (extent == 0) return 0;
    overflow = overflow || !Multiply(extent, &product);
  }
  if (overflow) return std::nullopt;
  return product;
}

absl::Status CheckTokens(const std::string& name, const WireTensor& tensor,
                         absl::Span<const int64_t> leading, const RequestLimits& limits,
                         int64_t* tokens) {
  const std::optional<int64_t> product = Product(leading);
  if (product.has_value() && *product <= limits.tokens_max) {
    *tokens = *product;
    return absl::OkStatus();
  }
  return MakeError(Reason::kTooLarge, absl::StrCat(name, ": expected at most ", limits.tokens_max,
                                                   " tokens, got ", Given(tensor)));
}

// Rank, dtype, extents and size of one input; its leading axes go to *form, their product to
// *tokens.
absl::Status CheckTensor(const BlockTensor& expected, const WireTensor& tensor,
                         const RequestLimits& limits, AnswerForm* form, int64_t* tokens) {
  const std::string name = expected.name;
  const int columns_rank = expected.columns > 0 ? 1 : 0;
  if (tensor.rank > kWireRankMax - 1 + columns_rank) {
    return BadTensor(absl::StrCat(name, ": expected ", Expected(expected), " of at most ",
                                  kWireRankMax - 1 + columns_rank, " dimensions, got ",
                                  tensor.rank));
  }
  const absl::Span<const int64_t> shape = absl::MakeConstSpan(tensor.shape).first(tensor.rank);
  const std::optional<DType> dtype = FromWire(tensor.data_type);
  bool fits = dtype.has_value() && tensor.rank >= 1 + columns_rank;
  if (fits) {
    fits = false;
    for (const DType accepted : expected.dtypes) fits = fits || accepted == *dtype;
    for (const int64_t extent : shape) fits = fits && extent >= 0;
    fits = fits && (columns_rank == 0 || shape.back() == expected.columns);
  }
  if (!fits) {
    return BadTensor(
        absl::StrCat(name, ": expected ", Expected(expected), ", got ", Given(tensor)));
  }
  form->axes = static_cast<int>(tensor.rank) - columns_rank;
  std::copy_n(shape.begin(), form->axes, form->extent.begin());
  absl::Status status = CheckTokens(name, tensor, shape.first(form->axes), limits, tokens);
  if (!status.ok()) return status;
  int64_t bytes = SizeOf(*dtype);
  if (!Multiply(*tokens, &bytes) || !Multiply(std::max<int64_t>(1, expected.columns), &bytes) ||
      bytes != static_cast<int64_t>(tensor.bytes)) {
    return BadTensor(absl::StrCat(name, ": expected ", bytes, " bytes for ", Given(tensor),
                                  ", got ", tensor.bytes));
  }
  return absl::OkStatus();
}

// The input of that name, or -1.
int InputIndex(const ServedBlock& block, std::string_view name) {
  for (size_t i = 0; i < block.inputs.size(); ++i) {
    if (block.inputs[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::string InputNames(const ServedBlock& block) {
  return absl::StrJoin(block.inputs, ", ", [](std::string* out, const BlockTensor& input) {
    absl::StrAppend(out, input.name, input.optional ? " (optional)" : "");
  });
}

absl::Status CheckResponseSize(const ServedBlock& block, int64_t tokens) {
  int64_t total = 0;
  for (const BlockTensor& output : block.outputs) {
    int64_t bytes = SizeOf(output.dtypes.front());
    if (!Multiply(output.columns, &bytes) || !Multiply(tokens, &bytes) ||
        __builtin_add_overflow(total, bytes, &total) || total > kResponseBytesMax) {
      return MakeError(Reason::kTooLarge,
                       absl::StrCat("request: expected an answer of at most ", kResponseBytesMax,
                                    " bytes; ", tokens, " tokens give more"));
    }
  }
  return absl::OkStatus();
}

void ReleaseStorage(void* held) { delete static_cast<std::shared_ptr<const void>*>(held); }

grpc::Slice Alias(absl::Span<const std::byte> bytes, const std::shared_ptr<const void>& storage) {
  return grpc::Slice(const_cast<std::byte*>(bytes.data()), bytes.size(), ReleaseStorage,
                     new std::shared_ptr<const void>(storage));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RawMessage>> RawMessage::From(const grpc::ByteBuffer& buffer) {
  auto message = std::make_shared<RawMessage>();
  const auto add = [&](const grpc::Slice& slice) {
    message->pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
    message->bytes += slice.size();
  };
  if (buffer.TrySingleSlice(&message->only).ok()) {
    add(message->only);
    return message;
  }
  if (!buffer.Dump(&message->slices).ok()) {
    return MakeError(Reason::kInternal, "the message could not be read from the transport");
  }
  message->pieces.reserve(message->slices.size());
  for (const grpc::Slice& slice : message->slices) add(slice);
  return message;
}

std::optional<DType> FromWire(int32_t data_type) {
  switch (data_type) {
    case v1::DATA_TYPE_FP32:
      return DType::kF32;
    case v1::DATA_TYPE_FP16:
      return DType::kF16;
    case v1::DATA_TYPE_BF16:
      return DType::kBF16;
    case v1::DATA_TYPE_INT32:
      return DType::kI32;
    case v1::DATA_TYPE_INT64:
      return DType::kI64;
    default:
      return std::nullopt;
  }
}

v1::DataType ToWire(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return v1::DATA_TYPE_FP32;
    case DType::kF16:
      return v1::DATA_TYPE_FP16;
    case DType::kBF16:
      return v1::DATA_TYPE_BF16;
    case DType::kI32:
      return v1::DATA_TYPE_INT32;
    case DType::kI64:
      return v1::DATA_TYPE_INT64;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

absl::StatusOr<CheckedInputs> CheckInputs(const ServedBlock& block, const RequestLimits& limits,
                                          const WireRequest& request) {
  size_t bytes = 0;
  for (const WireTensor& tensor : request.inputs) bytes += tensor.bytes;
  if (bytes > static_cast<size_t>(limits.bytes_max)) {
    return MakeError(Reason::kTooLarge, absl::StrCat("request: expected at most ", limits.bytes_max,
                                                     " bytes of tensors, got ", bytes));
  }
  std::array<const WireTensor*, 2> given{};
  for (const WireTensor& tensor : request.inputs) {
    const int index = InputIndex(block, tensor.name);
    if (index < 0) {
      return BadTensor(absl::StrCat("\"", tensor.name, "\": not an input of ", block.name,
                                    ", which takes ", InputNames(block)));
    }
    if (given[index] != nullptr) return BadTensor(absl::StrCat(tensor.name, ": given twice"));
    given[index] = &tensor;
  }
  CheckedInputs checked;
  const WireTensor* first = nullptr;
  bool optional_outputs = true;
  for (size_t i = 0; i < block.inputs.size(); ++i) {
    const BlockTensor& expected = block.inputs[i];
    if (given[i] == nullptr) {
      if (expected.optional) {
        optional_outputs = false;
        continue;
      }
      return BadTensor(absl::StrCat(expected.name, ": missing; expected ", Expected(expected)));
    }
    AnswerForm form;
    absl::Status status = CheckTensor(expected, *given[i], limits, &form, &checked.tokens);
    if (!status.ok()) return status;
    if (first == nullptr) {
      first = given[i];
      checked.form = form;
    } else if (given[i]->rank != first->rank || given[i]->shape != first->shape) {
      return BadTensor(absl::StrCat(expected.name, ": expected the shape of ", block.inputs[0].name,
                                    ", ", Given(*first), ", got ", Given(*given[i])));
    }
    const auto& pieces = given[i]->data;
    checked.inputs[i] = {true, *FromWire(given[i]->data_type), pieces};
  }
  checked.form.optional_outputs = optional_outputs;
  absl::Status status = CheckResponseSize(block, checked.tokens);
  if (!status.ok()) return status;
  return checked;
}

void EncodedMessage::AddHead(std::string_view head) {
  if (!head.empty()) Add(grpc::Slice(head.data(), head.size()));
}

void EncodedMessage::Add(grpc::Slice slice) {
  bytes += slice.size();
  slices.push_back(std::move(slice));
}

void EncodedMessage::WriteTo(grpc::ByteBuffer* buffer) const {
  grpc::ByteBuffer made(slices.data(), slices.size());
  buffer->Swap(&made);
}

EncodedMessage EncodeResponse(const ServedBlock& block, const AnswerForm& form,
                              const Outcome& outcome) {
  EncodedMessage message;
  WireBytes head, extents, tensor;
  for (int axis = 0; axis < form.axes; ++axis) {
    AppendVarint(static_cast<uint64_t>(form.extent[axis]), &extents);
  }
  const size_t leading = extents.size();
  for (size_t i = 0; i < block.outputs.size(); ++i) {
    const BlockTensor& output = block.outputs[i];
    if (output.optional && !form.optional_outputs) continue;
    size_t bytes = 0;
    for (const absl::Span<const std::byte> piece : outcome.outputs[i]) bytes += piece.size();
    extents.resize(leading);
    AppendVarint(static_cast<uint64_t>(output.columns), &extents);
    tensor.clear();
    AppendString(1, output.name, &tensor);
    AppendTag(2, kVarint, &tensor);
    AppendVarint(ToWire(output.dtypes.front()), &tensor);
    AppendString(3, View(extents), &tensor);
    if (bytes > 0) {
      AppendTag(4, kLengthDelimited, &tensor);
      AppendVarint(bytes, &tensor);
    }
    AppendTag(1, kLengthDelimited, &head);
    AppendVarint(tensor.size() + bytes, &head);
    AppendBytes(View(tensor), &head);
    if (bytes == 0) continue;
    message.AddHead(View(head));
    for (const absl::Span<const std::byte> piece : outcome.outputs[i]) {
      message.Add(Alias(piece, outcome.storage));
    }
    head.clear();
  }
  AppendString(2, absl::StrCat(block.revision), &head);
  AppendString(3, DeviceName(outcome.device), &head);
  message.AddHead(View(head));
  return message;
}

EncodedMessage EncodeStreamResponse(uint64_t request_id, EncodedMessage response) {
  WireBytes head;
  if (request_id != 0) {
    AppendTag(1, kVarint, &head);
    AppendVarint(request_id, &head);
  }
  AppendTag(6, kLengthDelimited, &head);
  AppendVarint(response.bytes, &head);
  EncodedMessage message;
  message.AddHead(View(head));
  for (grpc::Slice& slice : response.slices) message.Add(std::move(slice));
  return message;
}

EncodedMessage EncodeStreamError(uint64_t request_id, const absl::Status& status) {
  const ErrorText error = TextOf(status);
  v1::StreamBlocksResponse response;
  response.set_request_id(request_id);
  response.set_code(static_cast<int>(error.code));
  response.set_message(error.message);
  response.set_reason(error.reason);
  response.set_retry_after_ms(static_cast<uint32_t>(error.retry_after_ms));
  EncodedMessage message;
  message.AddHead(response.SerializeAsString());
  return message;
}

}  // namespace fuseblock
