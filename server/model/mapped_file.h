// A file mapped for reading. The pages come in as they are touched and can be given back.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fuseblock {

// Move-only; unmaps when destroyed. The file must keep its length while it is mapped.
class MappedFile {
 public:
  // NOT_FOUND when there is no such file, INVALID_ARGUMENT when it is no regular file; errors name
  // the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  absl::Span<const std::byte> bytes() const { return bytes_; }

  // Gives the pages of `part`, a piece of bytes(), back to the system; they are read again if they
  // are touched again.
  void Release(absl::Span<const std::byte> part) const;

 private:
  MappedFile() = default;

  std::string path_;
  absl::Span<const std::byte> bytes_;
};

}  // namespace fuseblock
