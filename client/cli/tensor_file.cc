// Readers and writers of the two file formats. Headers are untrusted: every extent and offset is
// checked against the file's size.
#include "client/cli/tensor_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/dtype.h"
#include "nlohmann/json.hpp"

namespace fuseblock::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kNpyMagic("\x93NUMPY", 6);

absl::Status Bad(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes;
  if (in) bytes.assign(std::istreambuf_iterator<char>(in), {});
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  return bytes;
}

absl::Status WriteFile(const std::string& path, absl::Span<const absl::string_view> pieces) {
  std::ofstream out(path, std::ios::binary);
  for (absl::string_view piece : pieces) {
    out.write(piece.data(), static_cast<std::streamsize>(piece.size()));
  }
  out.close();
  if (out) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path, ": ", std::strerror(errno)));
}

// Little-endian, as every machine is that this runs on.
template <typename T>
T LoadAt(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// product(shape) * size, or nothing when an extent is negative or it does not fit.
std::optional<int64_t> SizeOf(absl::Span<const int64_t> shape, v1::DataType type) {
  int64_t bytes = Traits(type).size;
  for (int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

template <typename Matches>
v1::DataType FindType(const Matches& matches) {
  for (const DataTypeTraits& traits : AllDataTypes()) {
    if (matches(traits)) return traits.type;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

std::string Known(const char* DataTypeTraits::*name) {
  return absl::StrJoin(AllDataTypes(), ", ",
                       [name](std::string* out, const auto& traits) { *out += traits.*name; });
}

absl::StatusOr<FileTensor> ParseNpy(const std::string& path, const std::string& bytes) {
  if (!absl::StartsWith(bytes, kNpyMagic) || bytes.size() < 12) return Bad(path, "not a .npy file");
  const bool first_version = bytes[6] == 1;
  const size_t begin = first_version ? 10 : 12;
  const size_t length = first_version ? LoadAt<uint16_t>(bytes, 8) : LoadAt<uint32_t>(bytes, 8);
  if (length > bytes.size() - begin) return Bad(path, "its header ends after the file");
  const std::string header = bytes.substr(begin, length);
  static const std::regex kHeader(
      R"(\{'descr': '([^']*)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\),? *\}\s*)");
  std::smatch match;
  if (!std::regex_match(header, match, kHeader)) {
    return Bad(path, absl::StrCat("a header that is not understood: ", header));
  }
  FileTensor tensor;
  const std::string descr = match[1];
  tensor.type = FindType([&](const auto& traits) { return descr == traits.npy; });
  if (tensor.type == v1::DATA_TYPE_UNSPECIFIED) {
    return Bad(path,
               absl::StrCat("expected a dtype of ", Known(&DataTypeTraits::npy), ", got ", descr));
  }
  if (match[2] == "True") return Bad(path, "expected C order, got Fortran order");
  for (absl::string_view item : absl::StrSplit(match[3].str(), ',', absl::SkipWhitespace())) {
    int64_t extent = 0;
    if (!absl::SimpleAtoi(item, &extent)) return Bad(path, "an extent that does not fit");
    tensor.shape.push_back(extent);
  }
  tensor.data = bytes.substr(begin + length);
  const auto size = SizeOf(tensor.shape, tensor.type);
  if (!size || static_cast<size_t>(*size) != tensor.data.size()) {
    return Bad(path,
               absl::StrCat("expected ", size.value_or(-1), " bytes for ",
                            ShapeText(tensor.shape, tensor.type), ", got ", tensor.data.size()));
  }
  return tensor;
}

absl::StatusOr<FileTensor> ParseEntry(const std::string& path, const std::string& name,
                                      const Json& entry, absl::string_view data) {
  FileTensor tensor;
  tensor.name = name;
  const std::string dtype = entry.at("dtype");
  tensor.type = FindType([&](const auto& traits) { return dtype == traits.safetensors; });
  if (tensor.type == v1::DATA_TYPE_UNSPECIFIED) {
    return Bad(path, absl::StrCat(name, ": expected a dtype of ",
                                  Known(&DataTypeTraits::safetensors), ", got ", dtype));
  }
  tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
  const auto begin = entry.at("data_offsets").at(0).get<uint64_t>();
  const auto end = entry.at("data_offsets").at(1).get<uint64_t>();
  const auto size = SizeOf(tensor.shape, tensor.type);
  if (begin > end || end > data.size() || !size || end - begin != static_cast<uint64_t>(*size)) {
    return Bad(path, absl::StrCat(name, ": ", ShapeText(tensor.shape, tensor.type),
                                  " does not fit bytes ", begin, " to ", end, " of ", data.size()));
  }
  tensor.data = std::string(data.substr(begin, end - begin));
  return tensor;
}

absl::StatusOr<std::vector<FileTensor>> ParseSafetensors(const std::string& path,
                                                         const std::string& bytes) {
  if (bytes.size() < 8) return Bad(path, "not a .safetensors file");
  const auto length = LoadAt<uint64_t>(bytes, 0);
  if (length > bytes.size() - 8) return Bad(path, "its header ends after the file");
  std::vector<FileTensor> tensors;
  try {
    const Json header = Json::parse(bytes.substr(8, length));
    const absl::string_view data = absl::string_view(bytes).substr(8 + length);
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      auto tensor = ParseEntry(path, name, entry, data);
      if (!tensor.ok()) return tensor.status();
      tensors.push_back(*std::move(tensor));
    }
  } catch (const Json::exception& error) {
    return Bad(path, absl::StrCat("a header that is not understood: ", error.what()));
  }
  return tensors;
}

absl::Status WriteNpy(const std::string& path, const FileTensor& tensor) {
  // A tuple of one has a comma: "(3,)".
  const std::string shape =
      absl::StrCat(absl::StrJoin(tensor.shape, ", "), tensor.shape.size() == 1 ? "," : "");
  std::string header = absl::StrCat("{'descr': '", Traits(tensor.type).npy,
                                    "', 'fortran_order': False, 'shape': (", shape, "), }");
  constexpr size_t kPrefix = 10, kAlignment = 64;
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  const std::string prefix =
      absl::StrCat(kNpyMagic, absl::string_view("\x01\x00", 2),
                   absl::string_view(reinterpret_cast<const char*>(&length), 2));
  return WriteFile(path, {prefix, header, tensor.data});
}

absl::Status WriteSafetensors(const std::string& path, absl::Span<const FileTensor> tensors) {
  Json header = Json::object();
  size_t end = 0;
  for (const FileTensor& tensor : tensors) {
    const size_t begin = end;
    end += tensor.data.size();
    header[tensor.name] = {{"dtype", Traits(tensor.type).safetensors},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::vector<absl::string_view> pieces = {
      absl::string_view(reinterpret_cast<const char*>(&length), sizeof(length)), text};
  for (const FileTensor& tensor : tensors) pieces.push_back(tensor.data);
  return WriteFile(path, pieces);
}

}  // namespace

absl::StatusOr<std::vector<FileTensor>> ReadTensors(const std::string& path) {
  const bool npy = absl::EndsWith(path, ".npy");
  if (!npy && !absl::EndsWith(path, ".safetensors")) {
    return Bad(path, "expected a name that ends in .npy or .safetensors");
  }
  const auto bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  if (!npy) return ParseSafetensors(path, *bytes);
  auto tensor = ParseNpy(path, *bytes);
  if (!tensor.ok()) return tensor.status();
  std::vector<FileTensor> tensors;
  tensors.push_back(*std::move(tensor));
  return tensors;
}

absl::Status WriteTensors(const std::string& path, absl::Span<const FileTensor> tensors) {
  if (absl::EndsWith(path, ".safetensors")) return WriteSafetensors(path, tensors);
  if (!absl::EndsWith(path, ".npy")) {
    return Bad(path, "expected a name that ends in .npy or .safetensors");
  }
  if (tensors.size() != 1) {
    return Bad(path, absl::StrCat("a .npy holds one tensor, got ", tensors.size(),
                                  ": name one (y=FILE) or write a .safetensors"));
  }
  return WriteNpy(path, tensors[0]);
}

}  // namespace fuseblock::cli
