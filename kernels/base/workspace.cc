#include "kernels/base/workspace.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/base/align.h"

namespace fuseblock {

absl::Status CheckWorkspace(absl::Span<const std::byte> workspace, size_t needed) {
  if (workspace.size() < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("workspace: expected ", needed, " bytes, got ", workspace.size()));
  }
  if (needed > 0 && reinterpret_cast<uintptr_t>(workspace.data()) % kTensorAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("workspace: expected ", kTensorAlignment, "-byte alignment"));
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
