// A checkpoint's weights: model.safetensors, or the shards that model.safetensors.index.json names,
// mapped one by one as tensors are asked for.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/tensor_view.h"
#include "server/model/safetensors.h"

namespace fuseblock {

// Not thread-safe. Views stay valid as long as the checkpoint lives.
class Checkpoint {
 public:
  // NOT_FOUND when the folder has neither file, INVALID_ARGUMENT when the one that it has is
  // damaged. The index may name plain files of the folder only.
  static absl::StatusOr<Checkpoint> Open(const std::string& folder);

  // The tensor, of exactly that shape. NOT_FOUND for a missing tensor or shard, INVALID_ARGUMENT
  // for another shape or a dtype other than FP32, FP16 and BF16; each names file and tensor.
  absl::StatusOr<ConstTensorView> Find(std::string_view name,
                                       absl::Span<const int64_t> shape) const;

  // Every tensor's name, in order, without opening a shard.
  const std::vector<std::string>& names() const { return names_; }
  // The names that begin with `prefix`: a slice of names().
  absl::Span<const std::string> WithPrefix(std::string_view prefix) const;

  // What stands before `name` (with a dot at its end, or empty) in the one tensor whose name ends
  // with it: checkpoints of one family come with and without a base prefix. `layer_name` begins
  // with "layers.0."; any layer's number stands for the 0. NOT_FOUND when no tensor has such a
  // name, INVALID_ARGUMENT when two prefixes fit.
  absl::StatusOr<std::string> BasePrefix(std::string_view layer_name) const;

  // The file behind a name or the index, for messages.
  std::string FileOf(std::string_view name) const;

  // The weights behind the view were used for the last time for now: their pages may go.
  void Release(const ConstTensorView& view) const;

 private:
  Checkpoint() = default;
  absl::Status ReadIndex();
  absl::StatusOr<const SafetensorsFile*> Shard(const std::string& file) const;

  std::string folder_, source_;  // source_: the file that lists the names
  std::vector<std::string> names_;
  std::map<std::string, std::string, std::less<>> file_of_;  // tensor -> file name
  mutable std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

// The bytes that a dense view covers.
absl::Span<const std::byte> TensorBytes(const ConstTensorView& view);

// A small text file whole. NOT_FOUND when there is none, INVALID_ARGUMENT when it is larger than
// 64 MiB; errors name the path.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace fuseblock
