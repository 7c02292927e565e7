// The wire parser against protobuf's own: both must take and refuse the same bytes and read the
// same from them. Shared by the unit test and the fuzz target.
#pragma once

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "fuseblock/v1/block_service.pb.h"
#include "server/rpc/wire.h"

namespace fuseblock {

// The message cut into pieces of these lengths, over and over; an empty list leaves it whole.
inline std::vector<WirePiece> CutWire(std::string_view message,
                                      const std::vector<size_t>& lengths) {
  std::vector<WirePiece> pieces;
  const auto* bytes = reinterpret_cast<const std::byte*>(message.data());
  size_t at = 0;
  for (size_t i = 0; at < message.size(); ++i) {
    const size_t left = message.size() - at;
    const size_t length = lengths.empty() ? left : std::min(left, lengths[i % lengths.size()]);
    pieces.emplace_back(bytes + at, length);
    at += length;
  }
  return pieces;
}

inline std::string Join(absl::Span<const WirePiece> pieces) {
  std::string text;
  for (const WirePiece& piece : pieces) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return text;
}

// What differs, or empty.
inline std::string Difference(const WireTensor& wire, const v1::Tensor& tensor) {
  if (wire.name != tensor.name()) return "name";
  if (wire.data_type != static_cast<int32_t>(tensor.data_type())) return "data_type";
  if (wire.rank != tensor.shape_size()) return "rank";
  for (int i = 0; i < std::min(tensor.shape_size(), kWireRankMax); ++i) {
    if (wire.shape[i] != tensor.shape(i)) return "shape";
  }
  if (wire.bytes != tensor.data().size() || Join(wire.data) != tensor.data()) return "data";
  return "";
}

inline std::string Difference(const WireRequest& wire, const v1::RunBlockRequest& request) {
  if (wire.block != request.block()) return "block";
  if (wire.revision != request.revision()) return "revision";
  if (static_cast<int>(wire.inputs.size()) != request.inputs_size()) return "inputs";
  for (int i = 0; i < request.inputs_size(); ++i) {
    std::string difference = Difference(wire.inputs[i], request.inputs(i));
    if (!difference.empty()) return difference;
  }
  return "";
}

inline std::string Difference(const WireStreamRequest& wire,
                              const v1::StreamBlocksRequest& request) {
  if (wire.request_id != request.request_id()) return "request_id";
  if (wire.timeout_us != request.timeout_us()) return "timeout_us";
  return Difference(wire.request, request.request());
}

// Parses the bytes both ways. Empty when they agree: both refuse, or both take and read the same; a
// refusal for one of the wire parser's own bounds ("expected at most") agrees with anything.
template <typename Wire, typename Message>
std::string CompareParsers(std::string_view bytes, const std::vector<size_t>& lengths) {
  const std::vector<WirePiece> pieces = CutWire(bytes, lengths);
  Wire wire;
  const absl::Status status = ParseWire(pieces, &wire);
  const google::protobuf::LogSilencer quiet;  // bad UTF-8 would be logged, each time
  Message message;
  const bool parsed = message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  if (status.ok() && !parsed) return "taken, but protobuf refuses it";
  if (status.ok()) return Difference(wire, message);
  const bool bound = absl::StrContains(status.message(), "expected at most");
  if (parsed && !bound) return "refused, but protobuf takes it: " + std::string(status.message());
  return "";
}

}  // namespace fuseblock
