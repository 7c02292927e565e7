// JSON from files that nobody vouches for: bounded, without exceptions, no key twice.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace fuseblock {

// The document. INVALID_ARGUMENT with the position for what is not JSON, with the key for one that
// an object has twice, and for nesting deeper than 64.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text);

// A name from a file, fit to be printed: escaped, and cut when it is very long.
std::string Printable(std::string_view name);

}  // namespace fuseblock
