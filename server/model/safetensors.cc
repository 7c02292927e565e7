// The header is read by a SAX handler that takes nothing but the format's own structure, so that
// a hostile header costs no more memory than its length.
#include "server/model/safetensors.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/model/json.h"

namespace fuseblock {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kRankMax = 64;

// The sizes of the format's element types. A type that is not here is listed and never read.
struct ElementType {
  std::string_view name;
  int bits;
};
constexpr ElementType kElementTypes[] = {
    {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},    {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"U16", 16},        {"I16", 16},    {"F16", 16},    {"BF16", 16},   {"U32", 32},
    {"I32", 32},        {"F32", 32},    {"U64", 64},    {"I64", 64},    {"F64", 64},
    {"F8_E5M2FNUZ", 8}, {"C64", 64},
};

std::optional<int> ElementBits(std::string_view dtype) {
  for (const ElementType& type : kElementTypes) {
    if (type.name == dtype) return type.bits;
  }
  return std::nullopt;
}

absl::Status TensorError(std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", Printable(name), "': ", std::string(what)));
}

// Collects the entries; offsets are still relative to the end of the header.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  absl::Status status;
  SafetensorsHeader header;

  bool start_object(size_t) override {
    if (where_ == Where::kStart) return Enter(Where::kTop);
    if (where_ == Where::kTopValue) {
      fields_.clear();
      return Enter(name_ == "__metadata__" ? Where::kMetadata : Where::kTensor);
    }
    return Unexpected("an object");
  }

  bool key(string_t& key) override {
    if (where_ == Where::kTop) {
      name_ = key;
      if (!names_.insert(key).second) return Complain(TensorError(key, "appears twice"));
      entry_ = {};
      return Enter(Where::kTopValue);
    }
    if (!fields_.insert(key).second) {
      return Complain(TensorError(name_, absl::StrCat("key '", Printable(key), "' appears twice")));
    }
    if (where_ == Where::kMetadata) return Enter(Where::kMetadataValue);
    if (key == "dtype") return Enter(Where::kDType);
    if (key == "shape") return Enter(Where::kShape);
    if (key == "data_offsets") return Enter(Where::kOffsets);
    return Complain(TensorError(name_, absl::StrCat("unknown key '", Printable(key), "'")));
  }

  bool end_object() override {
    if (where_ == Where::kTop) return Enter(Where::kEnd);
    if (where_ == Where::kTensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (fields_.count(field) == 0) {
          return Complain(TensorError(name_, absl::StrCat("has no ", field)));
        }
      }
      header.emplace(name_, std::move(entry_));
    }
    return Enter(Where::kTop);
  }

  bool start_array(size_t) override {
    numbers_.clear();
    if (where_ == Where::kShape) return Enter(Where::kShapeNumbers);
    if (where_ == Where::kOffsets) return Enter(Where::kOffsetNumbers);
    return Unexpected("an array");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ != Where::kShapeNumbers && where_ != Where::kOffsetNumbers) {
      return Unexpected("a number");
    }
    const size_t limit = where_ == Where::kShapeNumbers ? kRankMax : 2;
    if (numbers_.size() == limit) {
      return Complain(TensorError(name_, absl::StrCat("expected at most ", limit, " numbers in ",
                                                      limit == 2 ? "data_offsets" : "shape")));
    }
    if (value > INT64_MAX) {
      return Complain(TensorError(name_, absl::StrCat("expected numbers below 2^63, got ", value)));
    }
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool end_array() override {
    if (where_ == Where::kShapeNumbers) {
      entry_.shape = numbers_;
    } else if (numbers_.size() != 2) {
      return Complain(TensorError(
          name_, absl::StrCat("expected 2 numbers in data_offsets, got ", numbers_.size())));
    } else {
      entry_.begin = static_cast<uint64_t>(numbers_[0]);
      entry_.end = static_cast<uint64_t>(numbers_[1]);
    }
    return Enter(Where::kTensor);
  }

  bool string(string_t& value) override {
    if (where_ == Where::kMetadataValue) return Enter(Where::kMetadata);
    if (where_ != Where::kDType) return Unexpected("a string");
    entry_.dtype = value;
    return Enter(Where::kTensor);
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return Unexpected(absl::StrCat("the number ", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", Printable(text)));
  }
  bool binary(binary_t&) override { return Unexpected("binary"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Complain(
        absl::InvalidArgumentError(absl::StrCat("the header is not JSON at its byte ", position)));
  }

 private:
  enum class Where {
    kStart,          // nothing read yet
    kTop,            // between the tensors
    kTopValue,       // a tensor's name was read
    kMetadata,       // inside __metadata__
    kMetadataValue,  // one of its keys was read
    kTensor,         // inside a tensor's object
    kDType,          // its keys: the value comes next
    kShape,
    kOffsets,
    kShapeNumbers,  // inside its arrays
    kOffsetNumbers,
    kEnd,
  };

  bool Enter(Where where) {
    where_ = where;
    return true;
  }
  bool Complain(absl::Status complaint) {
    status = std::move(complaint);
    return false;
  }
  bool Unexpected(std::string_view what) {
    const std::string text =
        absl::StrCat("the header has ", std::string(what), " in a wrong place");
    if (where_ == Where::kStart || where_ == Where::kTop) {
      return Complain(absl::InvalidArgumentError(text));
    }
    return Complain(TensorError(name_, text));
  }

  Where where_ = Where::kStart;
  std::string name_;  // of the tensor that is being read
  SafetensorsEntry entry_;
  std::vector<int64_t> numbers_;
  std::set<std::string> names_, fields_;
};

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The bytes that the entry's shape needs; nullopt for a dtype of unknown size.
absl::StatusOr<std::optional<uint64_t>> BytesNeeded(std::string_view name,
                                                    const SafetensorsEntry& entry, int* bits) {
  int64_t elements = 1;
  for (int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(elements, extent, &elements)) {
      return TensorError(name, absl::StrCat("shape ", ShapeText(entry.shape), " overflows"));
    }
  }
  const std::optional<int> known = ElementBits(entry.dtype);
  if (!known.has_value()) return std::nullopt;
  *bits = *known;
  int64_t total = 0;
  if (__builtin_mul_overflow(elements, int64_t{*known}, &total)) {
    return TensorError(name, absl::StrCat("shape ", ShapeText(entry.shape), " overflows"));
  }
  if (total % 8 != 0) {
    return TensorError(name, absl::StrCat("shape ", ShapeText(entry.shape), " of ", entry.dtype,
                                          " does not end at a byte"));
  }
  return static_cast<uint64_t>(total / 8);
}

// Checks one tensor on its own and makes its offsets absolute.
absl::Status CheckEntry(std::string_view name, uint64_t data_begin, uint64_t file_size,
                        SafetensorsEntry& entry) {
  const uint64_t data_size = file_size - data_begin;
  if (entry.end < entry.begin) {
    return TensorError(name, absl::StrCat("expected ordered data_offsets, got [", entry.begin, ", ",
                                          entry.end, "]"));
  }
  if (entry.end > data_size) {
    return TensorError(name, absl::StrCat("data_offsets [", entry.begin, ", ", entry.end,
                                          "] end outside the file's ", data_size,
                                          " bytes of data (is it truncated?)"));
  }
  int bits = 8;
  const auto needed = BytesNeeded(name, entry, &bits);
  if (!needed.ok()) return needed.status();
  if (needed->has_value() && **needed != entry.end - entry.begin) {
    return TensorError(name,
                       absl::StrCat("expected ", **needed, " bytes for ", entry.dtype, " ",
                                    ShapeText(entry.shape), ", got ", entry.end - entry.begin));
  }
  entry.begin += data_begin;
  entry.end += data_begin;
  const uint64_t alignment = std::max(bits / 8, 1);
  if (entry.begin != entry.end && entry.begin % alignment != 0) {
    return TensorError(name, absl::StrCat("expected its data at a multiple of ", alignment,
                                          " bytes, got file offset ", entry.begin));
  }
  return absl::OkStatus();
}

// Every byte of data belongs to exactly one tensor.
absl::Status CheckLayout(const SafetensorsHeader& header, uint64_t data_begin, uint64_t file_size) {
  std::vector<const SafetensorsHeader::value_type*> order;
  order.reserve(header.size());
  for (const auto& item : header) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t covered = data_begin;
  std::string_view previous;
  for (const auto* item : order) {
    const auto& [name, entry] = *item;
    if (entry.begin < covered) {
      return TensorError(name, absl::StrCat("overlaps tensor '", Printable(previous), "'"));
    }
    if (entry.begin > covered) {
      return TensorError(name, absl::StrCat("leaves a gap of ", entry.begin - covered,
                                            " bytes before it, at file offset ", covered));
    }
    covered = entry.end;
    previous = name;
  }
  if (covered != file_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected the file to end with its last tensor, "
                     "at ",
                     covered, " bytes, got ", file_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("expected a safetensors file of at least ",
                                                   kLengthBytes, " bytes, got ", file.size()));
  }
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(file[i]) << (8 * i);
  if (length > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a header of at most ", kSafetensorsHeaderBytesMax, " bytes, got ", length));
  }
  if (length > file.size() - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("expected a header of ", length, " bytes, got ",
                                                   file.size() - kLengthBytes,
                                                   " (is the file truncated?)"));
  }
  const char* text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  if (length == 0 || text[0] != '{') {
    return absl::InvalidArgumentError("expected the header to begin with '{'");
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, text + length, &reader)) return reader.status;
  const uint64_t data_begin = kLengthBytes + length;
  for (auto& [name, entry] : reader.header) {
    absl::Status status = CheckEntry(name, data_begin, file.size(), entry);
    if (!status.ok()) return status;
  }
  absl::Status status = CheckLayout(reader.header, data_begin, file.size());
  if (!status.ok()) return status;
  return std::move(reader.header);
}

SafetensorsFile::SafetensorsFile(MappedFile file, SafetensorsHeader header)
    : file_(std::move(file)), header_(std::move(header)) {}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(file->bytes());
  if (!header.ok()) {
    return absl::Status(header.status().code(),
                        absl::StrCat(path, ": ", header.status().message()));
  }
  return SafetensorsFile(*std::move(file), *std::move(header));
}

absl::StatusOr<ConstTensorView> SafetensorsFile::Find(std::string_view name) const {
  const auto it = header_.find(name);
  if (it == header_.end()) {
    return absl::NotFoundError(absl::StrCat(file_.path(), ": no tensor '", Printable(name), "'"));
  }
  const SafetensorsEntry& entry = it->second;
  const std::optional<DType> dtype = DTypeFromSafetensors(entry.dtype);
  if (!dtype.has_value() || Traits(*dtype).epsilon == 0) {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor '", Printable(name),
                                                   "': expected F32, F16 or BF16, got ",
                                                   Printable(entry.dtype)));
  }
  if (entry.shape.size() > static_cast<size_t>(kMaxRank)) {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor '", Printable(name),
                                                   "': expected at most ", kMaxRank, " axes, got ",
                                                   entry.shape.size()));
  }
  return ConstTensorView(file_.bytes().data() + entry.begin, *dtype, entry.shape);
}

}  // namespace fuseblock
