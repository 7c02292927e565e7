#include "server/model/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/model/json.h"

namespace fuseblock {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kTextBytesMax = size_t{64} << 20;

std::string Join(const std::string& folder, std::string_view file) {
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", std::string(file));
}

bool Exists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

// A shard is a file of the folder itself: no path leads out of it, by whatever spelling.
bool IsPlainName(std::string_view file) {
  return absl::EndsWith(absl::string_view(file.data(), file.size()), ".safetensors") &&
         file.find('/') == file.npos && file.find('\\') == file.npos &&
         file.find('\0') == file.npos && file.front() != '.';
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  if (file->bytes().size() > kTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected at most ", kTextBytesMax,
                                                   " bytes, got ", file->bytes().size()));
  }
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
}

absl::Span<const std::byte> TensorBytes(const ConstTensorView& view) {
  return {static_cast<const std::byte*>(view.data),
          static_cast<size_t>(view.elements()) * static_cast<size_t>(SizeOf(view.dtype))};
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  if (Exists(Join(folder, kSingleFile))) {
    checkpoint.source_ = Join(folder, kSingleFile);
    const absl::StatusOr<const SafetensorsFile*> file = checkpoint.Shard(kSingleFile);
    if (!file.ok()) return file.status();
    for (const auto& [name, entry] : (*file)->header()) {
      checkpoint.file_of_.emplace(name, kSingleFile);
    }
  } else if (Exists(Join(folder, kIndexFile))) {
    checkpoint.source_ = Join(folder, kIndexFile);
    const absl::Status status = checkpoint.ReadIndex();
    if (!status.ok()) return status;
  } else {
    return absl::NotFoundError(
        absl::StrCat(folder, ": expected ", kSingleFile, " or ", kIndexFile, ", got neither"));
  }
  for (const auto& [name, file] : checkpoint.file_of_) checkpoint.names_.push_back(name);
  return checkpoint;
}

absl::Status Checkpoint::ReadIndex() {
  const absl::StatusOr<std::string> text = ReadTextFile(source_);
  if (!text.ok()) return text.status();
  const absl::StatusOr<nlohmann::json> document = ParseJson(*text);
  if (!document.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(source_, ": ", document.status().message()));
  }
  const auto map = document->is_object() ? document->find("weight_map") : document->end();
  if (map == document->end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(source_, ": expected an object weight_map"));
  }
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !IsPlainName(file.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(absl::StrCat(
          source_, ": tensor '", Printable(name),
          "': expected the name of a .safetensors file in this folder, got ",
          Printable(file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))));
    }
    file_of_.emplace(name, file.get<std::string>());
  }
  return absl::OkStatus();
}

absl::StatusOr<const SafetensorsFile*> Checkpoint::Shard(const std::string& file) const {
  std::unique_ptr<SafetensorsFile>& slot = files_[file];
  if (slot == nullptr) {
    absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(Join(folder_, file));
    if (!opened.ok()) return opened.status();
    slot = std::make_unique<SafetensorsFile>(*std::move(opened));
  }
  return slot.get();
}

absl::StatusOr<ConstTensorView> Checkpoint::Find(std::string_view name,
                                                 absl::Span<const int64_t> shape) const {
  const auto it = file_of_.find(name);
  if (it == file_of_.end()) {
    return absl::NotFoundError(absl::StrCat(source_, ": no tensor '", Printable(name), "'"));
  }
  const absl::StatusOr<const SafetensorsFile*> file = Shard(it->second);
  if (!file.ok()) {
    return absl::Status(
        file.status().code(),
        absl::StrCat(file.status().message(), " (for tensor '", Printable(name), "')"));
  }
  absl::StatusOr<ConstTensorView> view = (*file)->Find(name);
  if (view.ok() && view->dims() != shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        FileOf(name), ": tensor '", Printable(name), "': expected shape [",
        absl::StrJoin(shape, ", "), "], got [", absl::StrJoin(view->dims(), ", "), "]"));
  }
  return view;
}

absl::Span<const std::string> Checkpoint::WithPrefix(std::string_view prefix) const {
  const auto begin = std::lower_bound(names_.begin(), names_.end(), prefix);
  auto end = begin;
  while (end != names_.end() && end->compare(0, prefix.size(), prefix) == 0) ++end;
  return absl::MakeConstSpan(names_).subspan(static_cast<size_t>(begin - names_.begin()),
                                             static_cast<size_t>(end - begin));
}

absl::StatusOr<std::string> Checkpoint::BasePrefix(std::string_view layer_name) const {
  constexpr std::string_view kLayers = "layers.";
  const std::string_view rest = layer_name.substr(kLayers.size() + 1);  // ".mlp.down_proj.weight"
  std::set<std::string> found;
  for (const std::string& name : names_) {
    if (name.size() <= rest.size() ||
        name.compare(name.size() - rest.size(), rest.size(), rest) != 0) {
      continue;
    }
    size_t at = name.size() - rest.size();
    while (at > 0 && absl::ascii_isdigit(name[at - 1])) --at;
    if (at == name.size() - rest.size() || at < kLayers.size()) continue;
    at -= kLayers.size();
    if (name.compare(at, kLayers.size(), kLayers) != 0) continue;
    if (at == 0 || name[at - 1] == '.') found.insert(name.substr(0, at));
  }
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat(source_, ": no tensor 'model.", std::string(layer_name), "'"));
  }
  if (found.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_, ": expected one prefix of '", std::string(layer_name), "', got '",
                     Printable(*found.begin()), "' and '", Printable(*found.rbegin()), "'"));
  }
  return *found.begin();
}

std::string Checkpoint::FileOf(std::string_view name) const {
  const auto it = file_of_.find(name);
  return it == file_of_.end() ? source_ : Join(folder_, it->second);
}

void Checkpoint::Release(const ConstTensorView& view) const {
  const absl::Span<const std::byte> bytes = TensorBytes(view);
  for (const auto& [name, file] : files_) {
    if (file == nullptr) continue;
    const absl::Span<const std::byte> all = file->file().bytes();
    if (bytes.data() >= all.data() && bytes.data() < all.data() + all.size()) {
      file->file().Release(bytes);
    }
  }
}

}  // namespace fuseblock
