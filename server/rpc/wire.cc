#include "server/rpc/wire.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kLength = 2, kGroup = 3, kEndGroup = 4, kFixed32 = 5 };

// As protobuf's parser: messages and groups may nest this deep, the outermost not counted.
constexpr int kDepthMax = 100;
// Lengths that protobuf refuses whatever the message's size.
constexpr uint64_t kLengthMax = std::numeric_limits<int32_t>::max() - 16;

class Reader {
 public:
  explicit Reader(absl::Span<const WirePiece> message) : message_(message) {
    for (const WirePiece& piece : message) limit_ += piece.size();
    SkipEmptyPieces();
  }

  size_t position() const { return position_; }
  bool AtLimit() const { return position_ == limit_; }

  // Narrows the limit to the next `length` bytes and returns the old one for PopLimit.
  bool PushLimit(size_t length, size_t* old) {
    if (length > limit_ - position_) return false;
    *old = limit_;
    limit_ = position_ + length;
    return true;
  }
  void PopLimit(size_t old) { limit_ = old; }

  bool ReadVarint(uint64_t* value) { return ReadVarint(10, value); }
  // At most five bytes; what is above 32 bits is dropped, as protobuf does.
  bool ReadTag(uint32_t* tag) {
    uint64_t value = 0;
    if (!ReadVarint(5, &value)) return false;
    *tag = static_cast<uint32_t>(value);
    return *tag >> 3 != 0;
  }
  bool ReadLength(size_t* length) {
    uint64_t value = 0;
    if (!ReadVarint(5, &value) || value > kLengthMax || value > limit_ - position_) return false;
    *length = value;
    return true;
  }

  // Calls use(piece) for the next `length` bytes, piece by piece. Precondition: they are there.
  template <typename Use>
  void Take(size_t length, Use&& use) {
    while (length > 0) {
      const size_t count = std::min(length, message_[piece_].size() - offset_);
      use(message_[piece_].subspan(offset_, count));
      Advance(count);
      length -= count;
    }
  }

  bool SkipField(uint32_t tag, int depth) {
    size_t length = 0;
    uint64_t ignored = 0;
    switch (tag & 7) {
      case kVarint:
        return ReadVarint(&ignored);
      case kFixed64:
        return SkipBytes(8);
      case kLength:
        return ReadLength(&length) && SkipBytes(length);
      case kGroup:
        return SkipGroup(tag >> 3, depth - 1);
      case kFixed32:
        return SkipBytes(4);
      default:
        return false;
    }
  }

 private:
  bool ReadVarint(int bytes_max, uint64_t* value) {
    uint64_t result = 0;
    for (int i = 0; i < bytes_max && !AtLimit(); ++i) {
      const auto byte = static_cast<uint64_t>(message_[piece_][offset_]);
      Advance(1);
      result |= (byte & 0x7F) << (7 * i);
      if (byte < 0x80) {
        *value = result;
        return true;
      }
    }
    return false;
  }

  bool SkipBytes(size_t length) {
    if (length > limit_ - position_) return false;
    Take(length, [](WirePiece) {});
    return true;
  }

  bool SkipGroup(uint32_t field, int depth) {
    if (depth < 0) return false;
    uint32_t tag = 0;
    while (ReadTag(&tag)) {
      if ((tag & 7) == kEndGroup) return tag >> 3 == field;
      if (!SkipField(tag, depth)) return false;
    }
    return false;
  }

  void Advance(size_t count) {
    position_ += count;
    offset_ += count;
    if (offset_ == message_[piece_].size()) {
      ++piece_;
      offset_ = 0;
      SkipEmptyPieces();
    }
  }
  void SkipEmptyPieces() {
    while (piece_ < message_.size() && message_[piece_].empty()) ++piece_;
  }

  absl::Span<const WirePiece> message_;
  size_t piece_ = 0, offset_ = 0;  // where the next byte lies
  size_t position_ = 0;            // the same, from the message's beginning
  size_t limit_ = 0;
};

absl::Status Malformed(const Reader& reader) {
  return MakeError(Reason::kBadTensor,
                   absl::StrCat("request: malformed message at byte ", reader.position()));
}

// proto3's rule for `string`: no overlong forms, no surrogates, nothing above U+10FFFF.
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    const int follow = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - i < static_cast<size_t>(follow)) return false;
    const auto first = static_cast<unsigned char>(text[i]);
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (first < low || first > high) return false;
    for (int k = 1; k < follow; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return false;
    }
    i += follow;
  }
  return true;
}

absl::Status ReadName(Reader& reader, const char* what, std::string* out) {
  size_t length = 0;
  if (!reader.ReadLength(&length)) return Malformed(reader);
  if (length > kWireNameBytesMax) {
    return MakeError(Reason::kBadTensor, absl::StrCat(what, ": expected at most ",
                                                      kWireNameBytesMax, " bytes, got ", length));
  }
  out->clear();
  reader.Take(length, [&](WirePiece piece) {
    out->append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return IsUtf8(*out) ? absl::OkStatus() : Malformed(reader);
}

absl::Status ReadUint64(Reader& reader, uint64_t* out) {
  return reader.ReadVarint(out) ? absl::OkStatus() : Malformed(reader);
}

void AddExtent(uint64_t value, WireTensor* out) {
  if (out->rank < kWireRankMax) out->shape[out->rank] = static_cast<int64_t>(value);
  ++out->rank;
}

// The messages' fields: each reads the field that the tag announces, or returns false when it is
// not one of the message's, which is then skipped.
bool ReadField(Reader& reader, uint32_t tag, int depth, WireTensor* out, absl::Status* status);
bool ReadField(Reader& reader, uint32_t tag, int depth, WireRequest* out, absl::Status* status);
bool ReadField(Reader& reader, uint32_t tag, int depth, WireStreamRequest* out,
               absl::Status* status);

template <typename Message>
absl::Status ReadMessage(Reader& reader, int depth, Message* out) {
  if (depth < 0) return Malformed(reader);
  while (!reader.AtLimit()) {
    uint32_t tag = 0;
    if (!reader.ReadTag(&tag)) return Malformed(reader);
    absl::Status status;
    if (!ReadField(reader, tag, depth, out, &status) && !reader.SkipField(tag, depth)) {
      return Malformed(reader);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

template <typename Message>
absl::Status ReadSubmessage(Reader& reader, int depth, Message* out) {
  size_t length = 0, old = 0;
  if (!reader.ReadLength(&length) || !reader.PushLimit(length, &old)) return Malformed(reader);
  absl::Status status = ReadMessage(reader, depth - 1, out);
  reader.PopLimit(old);
  return status;
}

constexpr uint32_t Tag(int field, WireType type) { return field << 3 | type; }

bool ReadField(Reader& reader, uint32_t tag, int, WireTensor* out, absl::Status* status) {
  uint64_t value = 0;
  size_t length = 0, old = 0;
  switch (tag) {
    case Tag(1, kLength):
      *status = ReadName(reader, "tensor's name", &out->name);
      return true;
    case Tag(2, kVarint):
      *status = ReadUint64(reader, &value);
      out->data_type = static_cast<int32_t>(value);
      return true;
    case Tag(3, kVarint):
      *status = ReadUint64(reader, &value);
      AddExtent(value, out);
      return true;
    case Tag(3, kLength):  // packed
      if (!reader.ReadLength(&length) || !reader.PushLimit(length, &old)) {
        *status = Malformed(reader);
        return true;
      }
      while (status->ok() && !reader.AtLimit()) {
        *status = ReadUint64(reader, &value);
        AddExtent(value, out);
      }
      reader.PopLimit(old);
      return true;
    case Tag(4, kLength):
      if (!reader.ReadLength(&length)) {
        *status = Malformed(reader);
        return true;
      }
      out->bytes = length;
      out->data.clear();
      reader.Take(length, [&](WirePiece piece) { out->data.push_back(piece); });
      return true;
    default:
      return false;
  }
}

bool ReadField(Reader& reader, uint32_t tag, int depth, WireRequest* out, absl::Status* status) {
  switch (tag) {
    case Tag(1, kLength):
      *status = ReadName(reader, "block", &out->block);
      return true;
    case Tag(2, kLength):
      *status = ReadName(reader, "revision", &out->revision);
      return true;
    case Tag(3, kLength):
      if (out->inputs.size() == kWireInputsMax) {
        *status = MakeError(Reason::kBadTensor, absl::StrCat("inputs: expected at most ",
                                                             kWireInputsMax, ", got more"));
        return true;
      }
      *status = ReadSubmessage(reader, depth, &out->inputs.emplace_back());
      return true;
    default:
      return false;
  }
}

bool ReadField(Reader& reader, uint32_t tag, int depth, WireStreamRequest* out,
               absl::Status* status) {
  switch (tag) {
    case Tag(1, kVarint):
      *status = ReadUint64(reader, &out->request_id);
      return true;
    case Tag(2, kLength):
      *status = ReadSubmessage(reader, depth, &out->request);
      return true;
    case Tag(3, kVarint):
      *status = ReadUint64(reader, &out->timeout_us);
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status ParseWire(absl::Span<const WirePiece> message, WireRequest* out) {
  Reader reader(message);
  return ReadMessage(reader, kDepthMax, out);
}

absl::Status ParseWire(absl::Span<const WirePiece> message, WireStreamRequest* out) {
  Reader reader(message);
  return ReadMessage(reader, kDepthMax, out);
}

void AppendVarint(uint64_t value, WireBytes* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendTag(int field, int wire_type, WireBytes* out) {
  AppendVarint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type), out);
}

void AppendBytes(std::string_view bytes, WireBytes* out) {
  out->insert(out->end(), bytes.begin(), bytes.end());
}

void AppendString(int field, std::string_view value, WireBytes* out) {
  if (value.empty()) return;
  AppendTag(field, kLength, out);
  AppendVarint(value.size(), out);
  AppendBytes(value, out);
}

}  // namespace fuseblock
