// The notation of the configuration's `layers`: "0-3,29".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fuseblock {

// The layers, ascending; all of them for an empty text. INVALID_ARGUMENT, naming the piece, for
// what is no number or range, for a range that runs backwards, for a layer named twice and for one
// that a model of `count` layers does not have.
absl::StatusOr<std::vector<int64_t>> ParseLayers(std::string_view text, int64_t count);

}  // namespace fuseblock
