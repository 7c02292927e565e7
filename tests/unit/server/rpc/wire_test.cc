// The hand-written wire parser agrees with protobuf's, wherever the message is cut, and bounds what
// it keeps.
#include "server/rpc/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "server/reason.h"
#include "tests/support/wire_compare.h"

namespace fuseblock {
namespace {

using ::testing::HasSubstr;

v1::StreamBlocksRequest Example() {
  v1::StreamBlocksRequest request;
  request.set_request_id(uint64_t{1} << 63);
  request.set_timeout_us(1500);
  request.mutable_request()->set_block("smollm2.layers.0.mlp");
  request.mutable_request()->set_revision("12");
  for (const char* name : {"x", "r\xC3\xA9sidu"}) {
    v1::Tensor* tensor = request.mutable_request()->add_inputs();
    tensor->set_name(name);
    tensor->set_data_type(v1::DATA_TYPE_BF16);
    for (const int64_t extent : {int64_t{3}, int64_t{0}, int64_t{-1}, int64_t{1} << 62}) {
      tensor->add_shape(extent);
    }
    tensor->set_data(std::string(100, name[0]));
  }
  return request;
}

void ExpectAgreement(const std::string& bytes, const std::vector<size_t>& lengths) {
  EXPECT_EQ((CompareParsers<WireStreamRequest, v1::StreamBlocksRequest>(bytes, lengths)), "")
      << ::testing::PrintToString(bytes);
  EXPECT_EQ((CompareParsers<WireRequest, v1::RunBlockRequest>(bytes, lengths)), "")
      << ::testing::PrintToString(bytes);
}

TEST(WireTest, ReadsWhatProtobufWritesHoweverItIsCut) {
  const std::string bytes = Example().SerializeAsString();
  for (size_t length = 1; length <= bytes.size(); ++length) {
    const std::vector<WirePiece> pieces = CutWire(bytes, {length, 1});
    WireStreamRequest wire;
    ASSERT_EQ(ParseWire(pieces, &wire), absl::OkStatus());
    EXPECT_EQ(Difference(wire, Example()), "") << length;
  }
}

TEST(WireTest, DataIsNotCopied) {
  const std::string bytes = Example().request().SerializeAsString();
  WireRequest wire;
  const std::vector<WirePiece> pieces = CutWire(bytes, {});
  ASSERT_EQ(ParseWire(pieces, &wire), absl::OkStatus());
  ASSERT_EQ(wire.inputs[0].data.size(), 1u);
  const auto* data = reinterpret_cast<const char*>(wire.inputs[0].data[0].data());
  EXPECT_GE(data, bytes.data());
  EXPECT_LT(data, bytes.data() + bytes.size());
}

TEST(WireTest, EveryTruncationIsRefusedOrTakenAsByProtobuf) {
  const std::string bytes = Example().SerializeAsString();
  for (size_t length = 0; length <= bytes.size(); ++length) {
    ExpectAgreement(bytes.substr(0, length), {7});
  }
}

TEST(WireTest, EverySingleByteChangeAgrees) {
  const std::string bytes = Example().SerializeAsString();
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(value);
      EXPECT_EQ((CompareParsers<WireStreamRequest, v1::StreamBlocksRequest>(changed, {13})), "")
          << "byte " << at << " = " << value;
    }
  }
}

TEST(WireTest, RandomTokensAgree) {
  // Fragments that a parser trips over, in random order.
  const std::string fragments[] = {std::string("\x08\x01", 2),
                                   std::string("\x0a\x01x", 3),
                                   std::string("\x0a\x00", 2),
                                   std::string("\x12\x00", 2),
                                   std::string("\x12\x04\x0a\x02hi", 6),
                                   std::string("\x1a\x02\x10\x03", 4),
                                   std::string("\x1a\x04\x1a\x02\x01\x02", 6),
                                   std::string("\x1a\x02\x18\x05", 4),
                                   std::string("\x1a\x03\x22\x01z", 5),
                                   std::string("\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11),
                                   std::string("\x23\x24", 2),
                                   std::string("\x23\x08\x01\x24", 4),
                                   std::string("\x2b\x33\x34\x2c", 4),
                                   std::string("\x24", 1),
                                   std::string("\x00", 1),
                                   std::string("\x02\x00", 2),
                                   std::string("\x0f", 1),
                                   std::string("\x29\x01\x02\x03\x04\x05\x06\x07\x08", 9),
                                   std::string("\x2d\x01\x02\x03\x04", 5),
                                   std::string("\x0a\x02\xc3\xa9", 4),
                                   std::string("\x0a\x02\xc0\x80", 4),
                                   std::string("\x0a\x03\xed\xa0\x80", 5),
                                   std::string("\x80\x80\x80\x80\x10\x01", 6),
                                   std::string("\x88\x80\x80\x80\x70\x01", 6),
                                   std::string("\x0a\xff\xff\xff\xff\x07", 6),
                                   std::string("\x0a\x81\x00x", 4)};
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (unsigned count = random() % 6; count > 0; --count) {
      bytes += fragments[random() % std::size(fragments)];
    }
    ExpectAgreement(bytes, {1 + random() % 5, 1 + random() % 3});
  }
}

TEST(WireTest, NestsAsDeepAsProtobuf) {
  for (int depth : {99, 100, 101}) {
    ExpectAgreement(std::string(depth, '\x2b') + std::string(depth, '\x2c'), {64});
    // Inside a message, and inside a message of that message.
    const std::string groups = std::string(depth, '\x2b') + std::string(depth, '\x2c');
    WireBytes inner, outer;
    AppendString(3, groups, &inner);
    AppendString(2, View(inner), &outer);
    ExpectAgreement(std::string(View(inner)), {64});
    ExpectAgreement(std::string(View(outer)), {64});
  }
}

TEST(WireTest, BoundsWhatItKeeps) {
  WireRequest wire;
  v1::RunBlockRequest many;
  for (int i = 0; i < kWireInputsMax + 1; ++i) many.add_inputs();
  std::string bytes = many.SerializeAsString();
  absl::Status status = ParseWire(CutWire(bytes, {}), &wire);
  EXPECT_EQ(ReasonOf(status), Reason::kBadTensor);
  EXPECT_THAT(std::string(status.message()), HasSubstr("inputs: expected at most 8"));

  v1::RunBlockRequest named;
  named.set_block(std::string(kWireNameBytesMax, 'b'));
  bytes = named.SerializeAsString();
  wire = {};
  EXPECT_EQ(ParseWire(CutWire(bytes, {}), &wire), absl::OkStatus());
  named.set_block(std::string(kWireNameBytesMax + 1, 'b'));
  bytes = named.SerializeAsString();
  wire = {};
  status = ParseWire(CutWire(bytes, {}), &wire);
  EXPECT_THAT(std::string(status.message()), HasSubstr("block: expected at most 256 bytes"));

  v1::RunBlockRequest deep;
  v1::Tensor* tensor = deep.add_inputs();
  for (int i = 0; i < 65; ++i) tensor->add_shape(1);
  bytes = deep.SerializeAsString();
  wire = {};
  EXPECT_EQ(ParseWire(CutWire(bytes, {}), &wire), absl::OkStatus());
  EXPECT_EQ(wire.inputs[0].rank, 65);
}

TEST(WireTest, AnErrorKeepsTheRequestsId) {
  WireStreamRequest wire;
  const std::string bytes("\x08\x2a\x12\x7f", 4);
  EXPECT_EQ(ReasonOf(ParseWire(CutWire(bytes, {}), &wire)), Reason::kBadTensor);
  EXPECT_EQ(wire.request_id, 42u);
}

}  // namespace
}  // namespace fuseblock
