// What a request may be, what the refusals say, and that an answer is what protobuf would write,
// with the tensors' bytes not copied.
#include "server/rpc/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

constexpr RequestLimits kLimits = {/*tokens_max=*/1024, /*bytes_max=*/1 << 20};

ServedBlock MakeBlock(BlockKind kind) {
  ServedBlock block;
  block.name = "m.layers.0.part";
  block.revision = 3;
  block.spec.kind = kind;
  block.spec.dtype = DType::kBF16;
  const std::vector<DType> ids = {DType::kI32, DType::kI64};
  const std::vector<DType> floats = {DType::kBF16};
  if (kind == BlockKind::kEmbedding) {
    block.inputs = {{"ids", ids, 0, false}};
  } else {
    block.inputs = {{"x", floats, 6, false}, {"residual", floats, 6, true}};
  }
  block.outputs = {{"y", floats, 6, false}};
  if (kind == BlockKind::kNormResidual) block.outputs.push_back({"residual_out", floats, 6, true});
  return block;
}

// A tensor of zeros as the wire has it; `bytes` < 0: as many as the shape asks for.
class WireRequestBuilder {
 public:
  WireRequestBuilder& Add(const char* name, int32_t data_type, std::vector<int64_t> shape,
                          int64_t bytes = -1) {
    WireTensor tensor;
    tensor.name = name;
    tensor.data_type = data_type;
    tensor.rank = static_cast<int64_t>(shape.size());
    for (size_t i = 0; i < std::min<size_t>(shape.size(), kWireRankMax); ++i) {
      tensor.shape[i] = shape[i];
    }
    if (bytes < 0) {
      bytes = SizeOf(FromWire(data_type).value_or(DType::kF32));
      for (const int64_t extent : shape) bytes *= extent;
    }
    tensor.bytes = static_cast<size_t>(bytes);
    if (bytes > 0 && bytes <= static_cast<int64_t>(sizeof(kZeros))) {
      tensor.data.emplace_back(kZeros, bytes);
    }
    request_.inputs.push_back(std::move(tensor));
    return *this;
  }
  const WireRequest& request() const { return request_; }

 private:
  static constexpr std::byte kZeros[1 << 16] = {};
  WireRequest request_;
};

std::string Error(const ServedBlock& block, const WireRequestBuilder& builder,
                  Reason reason = Reason::kBadTensor) {
  const auto checked = CheckInputs(block, kLimits, builder.request());
  if (checked.ok()) return "taken";
  EXPECT_EQ(ReasonOf(checked.status()), reason) << checked.status();
  return std::string(checked.status().message());
}

TEST(CheckInputsTest, FlattensLeadingAxes) {
  const ServedBlock block = MakeBlock(BlockKind::kNormResidual);
  for (const std::vector<int64_t>& leading :
       std::vector<std::vector<int64_t>>{{4}, {0}, {2, 3}, {5, 0, 7}, {1, 2, 1, 2, 1, 2, 1, 2}}) {
    std::vector<int64_t> shape = leading;
    shape.push_back(6);
    int64_t tokens = 1;
    for (const int64_t extent : leading) tokens *= extent;
    const auto checked = CheckInputs(
        block, kLimits, WireRequestBuilder().Add("x", v1::DATA_TYPE_BF16, shape).request());
    ASSERT_EQ(checked.status(), absl::OkStatus());
    EXPECT_EQ(checked->tokens, tokens);
    EXPECT_EQ(checked->form.axes, static_cast<int>(leading.size()));
    EXPECT_FALSE(checked->form.optional_outputs);
    EXPECT_TRUE(checked->inputs[0].present);
    EXPECT_FALSE(checked->inputs[1].present);
  }
}

TEST(CheckInputsTest, TakesInputsInAnyOrder) {
  const auto checked = CheckInputs(MakeBlock(BlockKind::kNormResidual), kLimits,
                                   WireRequestBuilder()
                                       .Add("residual", v1::DATA_TYPE_BF16, {4, 6})
                                       .Add("x", v1::DATA_TYPE_BF16, {4, 6})
                                       .request());
  ASSERT_EQ(checked.status(), absl::OkStatus());
  EXPECT_TRUE(checked->inputs[1].present);
  EXPECT_TRUE(checked->form.optional_outputs);
}

TEST(CheckInputsTest, IdsHaveNoColumns) {
  const ServedBlock block = MakeBlock(BlockKind::kEmbedding);
  const auto checked = CheckInputs(
      block, kLimits, WireRequestBuilder().Add("ids", v1::DATA_TYPE_INT64, {2, 3}).request());
  ASSERT_EQ(checked.status(), absl::OkStatus());
  EXPECT_EQ(checked->tokens, 6);
  EXPECT_EQ(checked->form.axes, 2);
  EXPECT_EQ(checked->inputs[0].dtype, DType::kI64);
  EXPECT_EQ(Error(block, WireRequestBuilder().Add("ids", v1::DATA_TYPE_FP32, {2})),
            "ids: expected [*] INT32 or INT64, got [2] FP32");
  EXPECT_EQ(Error(block, WireRequestBuilder().Add("ids", v1::DATA_TYPE_INT32, {}, 4)),
            "ids: expected [*] INT32 or INT64, got [] INT32");
}

TEST(CheckInputsTest, RefusalsSayWhatWasExpectedAndWhatCame) {
  const ServedBlock block = MakeBlock(BlockKind::kNormResidual);
  const auto x = [&](int32_t dtype, std::vector<int64_t> shape, int64_t bytes = -1) {
    return Error(block, WireRequestBuilder().Add("x", dtype, std::move(shape), bytes));
  };
  EXPECT_EQ(x(v1::DATA_TYPE_BF16, {4, 5}), "x: expected [*, 6] BF16, got [4, 5] BF16");
  EXPECT_EQ(x(v1::DATA_TYPE_FP32, {4, 6}), "x: expected [*, 6] BF16, got [4, 6] FP32");
  EXPECT_EQ(x(0, {4, 6}), "x: expected [*, 6] BF16, got [4, 6] dtype 0");
  EXPECT_EQ(x(99, {4, 6}), "x: expected [*, 6] BF16, got [4, 6] dtype 99");
  EXPECT_EQ(x(v1::DATA_TYPE_BF16, {6}), "x: expected [*, 6] BF16, got [6] BF16");
  EXPECT_EQ(x(v1::DATA_TYPE_BF16, {}), "x: expected [*, 6] BF16, got [] BF16");
  EXPECT_EQ(x(v1::DATA_TYPE_BF16, {-1, 6}, 0), "x: expected [*, 6] BF16, got [-1, 6] BF16");
  EXPECT_EQ(x(v1::DATA_TYPE_BF16, {-2, -2, 6}, 48),
            "x: expected [*, 6] BF16, got [-2, -2, 6] BF16");
  EXPECT_EQ(x(v1::DATA_TYPE_BF16, {4, 6}, 47), "x: expected 48 bytes for [4, 6] BF16, got 47");
  EXPECT_EQ(x(v1::DATA_TYPE_BF16, {4, 6}, 49), "x: expected 48 bytes for [4, 6] BF16, got 49");
  EXPECT_EQ(x(v1::DATA_TYPE_BF16, {4, 6}, 0), "x: expected 48 bytes for [4, 6] BF16, got 0");
  EXPECT_EQ(x(v1::DATA_TYPE_BF16, std::vector<int64_t>(65, 1), 2),
            "x: expected [*, 6] BF16 of at most 9 dimensions, got 65");
}

TEST(CheckInputsTest, NamesOfInputs) {
  const ServedBlock block = MakeBlock(BlockKind::kNormResidual);
  EXPECT_EQ(Error(block, WireRequestBuilder()), "x: missing; expected [*, 6] BF16");
  EXPECT_EQ(Error(block, WireRequestBuilder().Add("residual", v1::DATA_TYPE_BF16, {4, 6})),
            "x: missing; expected [*, 6] BF16");
  EXPECT_EQ(Error(block, WireRequestBuilder()
                             .Add("x", v1::DATA_TYPE_BF16, {4, 6})
                             .Add("x", v1::DATA_TYPE_BF16, {4, 6})),
            "x: given twice");
  EXPECT_EQ(Error(block, WireRequestBuilder()
                             .Add("x", v1::DATA_TYPE_BF16, {4, 6})
                             .Add("X", v1::DATA_TYPE_BF16, {4, 6})),
            "\"X\": not an input of m.layers.0.part, which takes x, residual (optional)");
  EXPECT_EQ(Error(block, WireRequestBuilder()
                             .Add("x", v1::DATA_TYPE_BF16, {2, 2, 6})
                             .Add("residual", v1::DATA_TYPE_BF16, {4, 6})),
            "residual: expected the shape of x, [2, 2, 6] BF16, got [4, 6] BF16");
  for (const int64_t tokens : {0, 3, 5}) {
    EXPECT_EQ(
        Error(block, WireRequestBuilder()
                         .Add("x", v1::DATA_TYPE_BF16, {4, 6})
                         .Add("residual", v1::DATA_TYPE_BF16, {tokens, 6})),
        absl::StrCat("residual: expected the shape of x, [4, 6] BF16, got [", tokens, ", 6] BF16"));
  }
}

TEST(CheckInputsTest, LimitsAndOneAbove) {
  const ServedBlock block = MakeBlock(BlockKind::kNormResidual);
  const auto bf16 = v1::DATA_TYPE_BF16;
  EXPECT_EQ(Error(block, WireRequestBuilder().Add("x", bf16, {1024, 6})), "taken");
  EXPECT_EQ(Error(block, WireRequestBuilder().Add("x", bf16, {1025, 6}), Reason::kTooLarge),
            "x: expected at most 1024 tokens, got [1025, 6] BF16");
  // Extents whose product overflows, and one that a zero makes small after all.
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(Error(block, WireRequestBuilder().Add("x", bf16, {huge, 8, 6}, 0), Reason::kTooLarge),
            "x: expected at most 1024 tokens, got [4611686018427387904, 8, 6] BF16");
  EXPECT_EQ(Error(block, WireRequestBuilder().Add("x", bf16, {huge, 8, 0, 6}, 0)), "taken");
  EXPECT_EQ(Error(block, WireRequestBuilder().Add("x", bf16, {1, 6}, 1 << 20)),
            "x: expected 12 bytes for [1, 6] BF16, got 1048576");
  EXPECT_EQ(
      Error(block, WireRequestBuilder().Add("x", bf16, {1, 6}, (1 << 20) + 1), Reason::kTooLarge),
      "request: expected at most 1048576 bytes of tensors, got 1048577");
}

TEST(CheckInputsTest, RefusesAnAnswerThatNoMessageCanHold) {
  ServedBlock block = MakeBlock(BlockKind::kEmbedding);
  block.outputs[0].columns = int64_t{1} << 30;
  EXPECT_EQ(
      Error(block, WireRequestBuilder().Add("ids", v1::DATA_TYPE_INT32, {1}), Reason::kTooLarge),
      "request: expected an answer of at most 2147418111 bytes; 1 tokens give more");
}

std::string Flatten(const EncodedMessage& message) {
  std::string bytes;
  for (const grpc::Slice& slice : message.slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  EXPECT_EQ(bytes.size(), message.bytes);
  return bytes;
}

// An outcome whose outputs are these bytes, and a flag that its storage's end clears.
Outcome MakeOutcome(std::vector<std::string> outputs, bool* alive) {
  auto storage = std::shared_ptr<std::vector<std::string>>(
      new std::vector<std::string>(std::move(outputs)), [alive](std::vector<std::string>* owned) {
        *alive = false;
        delete owned;
      });
  *alive = true;
  Outcome outcome;
  for (size_t i = 0; i < storage->size(); ++i) {
    if ((*storage)[i].empty()) continue;
    const auto* data = reinterpret_cast<const std::byte*>((*storage)[i].data());
    outcome.outputs[i] = {{data, (*storage)[i].size()}};
  }
  outcome.storage = std::move(storage);
  outcome.device = {DeviceType::kCuda, 1};
  return outcome;
}

TEST(EncodeTest, WritesWhatProtobufWrites) {
  const ServedBlock block = MakeBlock(BlockKind::kNormResidual);
  for (const int64_t rows : {0, 1, 25}) {
    for (const bool optional : {false, true}) {
      const AnswerForm form = {2, {rows, 1}, optional};
      const std::string y(rows * 12, 'y'), r(rows * 12, 'r');
      bool alive = false;
      const Outcome outcome = MakeOutcome(
          optional ? std::vector<std::string>{y, r} : std::vector<std::string>{y}, &alive);
      v1::RunBlockResponse expected;
      for (int i = 0; i < 1 + optional; ++i) {
        v1::Tensor* tensor = expected.add_outputs();
        tensor->set_name(i == 0 ? "y" : "residual_out");
        tensor->set_data_type(v1::DATA_TYPE_BF16);
        for (const int64_t extent : {rows, int64_t{1}, int64_t{6}}) tensor->add_shape(extent);
        tensor->set_data(i == 0 ? y : r);
      }
      expected.set_revision("3");
      expected.set_backend("cuda:1");
      EncodedMessage message = EncodeResponse(block, form, outcome);
      EXPECT_EQ(Flatten(message), expected.SerializeAsString());

      v1::StreamBlocksResponse stream;
      stream.set_request_id(77);
      *stream.mutable_response() = expected;
      EXPECT_EQ(Flatten(EncodeStreamResponse(77, message)), stream.SerializeAsString());
      stream.clear_request_id();
      EXPECT_EQ(Flatten(EncodeStreamResponse(0, message)), stream.SerializeAsString());
    }
  }
}

TEST(EncodeTest, SlicesAliasTheOutputsAndKeepThem) {
  const ServedBlock block = MakeBlock(BlockKind::kMlp);
  bool alive = false;
  Outcome outcome = MakeOutcome({std::string(1200, 'y')}, &alive);
  const auto* data = reinterpret_cast<const uint8_t*>(outcome.outputs[0].front().data());
  EncodedMessage message = EncodeResponse(block, {1, {100}, false}, outcome);
  outcome.storage.reset();
  EXPECT_TRUE(alive);
  bool aliased = false;
  for (const grpc::Slice& slice : message.slices) aliased = aliased || slice.begin() == data;
  EXPECT_TRUE(aliased);
  grpc::ByteBuffer buffer;
  message.WriteTo(&buffer);
  message = {};
  EXPECT_TRUE(alive);
  buffer.Clear();
  EXPECT_FALSE(alive);
}

// A request computed in chunks: its tensor's bytes lie in as many places.
TEST(EncodeTest, PiecesAreOneTensor) {
  const ServedBlock block = MakeBlock(BlockKind::kMlp);
  bool alive = false;
  Outcome outcome = MakeOutcome({std::string(1200, 'y')}, &alive);
  const AnswerForm form = {1, {100}, false};
  const std::string whole = Flatten(EncodeResponse(block, form, outcome));
  const absl::Span<const std::byte> bytes = outcome.outputs[0].front();
  outcome.outputs[0] = {bytes.first(7), bytes.subspan(7, 1000), bytes.subspan(1007)};
  EncodedMessage message = EncodeResponse(block, form, outcome);
  EXPECT_EQ(Flatten(message), whole);
  outcome.storage.reset();
  message.slices.pop_back();
  message.slices.pop_back();  // the last piece, after the response's tail
  EXPECT_TRUE(alive) << "the pieces before it are still to be sent";
  message = {};
  EXPECT_FALSE(alive);
}

TEST(EncodeTest, StreamErrorsCarryCodeReasonAndDelay) {
  v1::StreamBlocksResponse response;
  const EncodedMessage message =
      EncodeStreamError(9, MakeError(Reason::kQueueFull, "full", absl::Microseconds(1500)));
  ASSERT_TRUE(response.ParseFromString(Flatten(message)));
  EXPECT_EQ(response.request_id(), 9u);
  EXPECT_EQ(response.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(response.reason(), "QUEUE_FULL");
  EXPECT_EQ(response.message(), "full");
  EXPECT_EQ(response.retry_after_ms(), 2u);
  EXPECT_FALSE(response.has_response());
}

TEST(EncodeTest, DTypesGoThereAndBack) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32, DType::kI64}) {
    EXPECT_EQ(FromWire(ToWire(dtype)), dtype);
    EXPECT_EQ("DATA_TYPE_" + std::string(Name(dtype)), v1::DataType_Name(ToWire(dtype)));
  }
  EXPECT_EQ(FromWire(v1::DATA_TYPE_UNSPECIFIED), std::nullopt);
  EXPECT_EQ(FromWire(-1), std::nullopt);
}

TEST(RawMessageTest, TakesReferences) {
  const std::string text(5000, 't');
  const grpc::Slice slices[] = {grpc::Slice(text), grpc::Slice("ab", 2)};
  const auto message = RawMessage::From(grpc::ByteBuffer(slices, 2));
  ASSERT_EQ(message.status(), absl::OkStatus());
  EXPECT_EQ((*message)->bytes, 5002u);
  ASSERT_EQ((*message)->pieces.size(), 2u);
  EXPECT_EQ(static_cast<const void*>((*message)->pieces[0].data()), slices[0].begin());
}

}  // namespace
}  // namespace fuseblock
