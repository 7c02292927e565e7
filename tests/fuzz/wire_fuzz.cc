// Requests as they come from anybody: the wire parser agrees with protobuf on every input, and what
// it takes is checked against a block without harm. The first byte says how the message is cut.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "server/rpc/codec.h"
#include "tests/support/wire_compare.h"

namespace fuseblock {
namespace {

ServedBlock MakeBlock() {
  ServedBlock block;
  block.name = "m.layers.0.ffn_path";
  block.spec.kind = BlockKind::kFfnPath;
  block.inputs = {{"x", {DType::kBF16}, 6, false}, {"residual", {DType::kBF16}, 6, true}};
  block.outputs = {{"y", {DType::kBF16}, 6, false}};
  return block;
}

void Require(const std::string& difference) {
  if (difference.empty()) return;
  std::fprintf(stderr, "%s\n", difference.c_str());
  std::abort();
}

// What the checks let through holds what it says.
void CheckTaken(std::string_view bytes, const std::vector<size_t>& lengths) {
  static const ServedBlock* const block = new ServedBlock(MakeBlock());
  const RequestLimits limits = {/*tokens_max=*/64, /*bytes_max=*/4096};
  const std::vector<WirePiece> pieces = CutWire(bytes, lengths);
  WireRequest wire;
  if (!ParseWire(pieces, &wire).ok()) return;
  const auto checked = CheckInputs(*block, limits, wire);
  if (!checked.ok()) return;
  for (const InputPayload& input : checked->inputs) {
    size_t size = 0;
    for (const WirePiece& piece : input.pieces) size += piece.size();
    const size_t expected = input.present ? static_cast<size_t>(checked->tokens) * 6 * 2 : 0;
    if (size != expected) Require("a payload of another size than its shape");
  }
}

}  // namespace
}  // namespace fuseblock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fuseblock;  // NOLINT(google-build-using-namespace): the program's only function
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::vector<size_t> lengths = {1u + data[0] % 16, 1u + data[0] / 16};
  Require(CompareParsers<WireRequest, v1::RunBlockRequest>(bytes, lengths));
  Require(CompareParsers<WireStreamRequest, v1::StreamBlocksRequest>(bytes, lengths));
  CheckTaken(bytes, lengths);
  return 0;
}
