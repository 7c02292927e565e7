// What a kernel asks of the memory that its caller gives it for what lies between its operands.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace fuseblock {

// OK when it has at least `needed` bytes and, where any are needed, begins as a tensor does
// (align.h); else INVALID_ARGUMENT with expected and given.
absl::Status CheckWorkspace(absl::Span<const std::byte> workspace, size_t needed);

}  // namespace fuseblock
