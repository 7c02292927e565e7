// What was measured about this machine: numbers that choose between ways to the same bits, each of
// them once, when a process first needs it; with a file, once for the processes that follow, too,
// which then start sooner and choose alike.
//
// The file is text: a line that names the build, then a line "<value> <key>" for each. A key says
// all else that its number depends on: device, driver, kernel, shape. A file of another build is
// begun anew, since its kernels are others; and so is an empty one.
//
// Example: UseTuningFile("/var/cache/fuseblock/tuning", "0.1.0 (4a1f)") -> OK. Smallest: path ""
// (no file). Invalid: a file that is no tuning file, which is left as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fuseblock {

// The number of that key: known, or from `measure`, whose errors are returned and not kept. key:
// one line. Thread-safe: one measurement at a time, so that they do not disturb one another.
absl::StatusOr<int64_t> Tuned(std::string_view key,
                              absl::FunctionRef<absl::StatusOr<int64_t>()> measure);

// From now on numbers are taken from that file, if there is one, and those measured are written to
// it, the whole file at once. A file that cannot be written is done without. Empty: no file, and
// all is forgotten. INVALID_ARGUMENT naming the line that is not as above.
absl::Status UseTuningFile(const std::string& path, std::string_view build);

}  // namespace fuseblock
