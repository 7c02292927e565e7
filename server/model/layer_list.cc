#include "server/model/layer_list.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fuseblock {
namespace {

// Digits only: SimpleAtoi alone would take signs and blanks.
bool ParseLayer(absl::string_view text, int64_t* layer) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, layer);
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> ParseLayers(std::string_view text, int64_t count) {
  std::vector<int64_t> layers;
  const std::string whole(text);
  const auto error = [&whole](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("layers \"", whole, "\": ", what));
  };
  if (whole.empty()) {
    layers.resize(static_cast<size_t>(count));
    std::iota(layers.begin(), layers.end(), 0);
    return layers;
  }
  for (absl::string_view piece : absl::StrSplit(whole, ',')) {
    piece = absl::StripAsciiWhitespace(piece);
    const std::vector<absl::string_view> ends = absl::StrSplit(piece, absl::MaxSplits('-', 1));
    int64_t first = 0, last = 0;
    if (!ParseLayer(ends.front(), &first) || !ParseLayer(ends.back(), &last)) {
      return error(absl::StrCat("expected a number or a range such as 0-3, got \"", piece, "\""));
    }
    if (first > last) return error(absl::StrCat("the range ", piece, " runs backwards"));
    if (last >= count) {
      return error(absl::StrCat("expected layers from 0 to ", count - 1, ", got ", last));
    }
    for (int64_t layer = first; layer <= last; ++layer) layers.push_back(layer);
  }
  std::sort(layers.begin(), layers.end());
  const auto twice = std::adjacent_find(layers.begin(), layers.end());
  if (twice != layers.end()) return error(absl::StrCat("layer ", *twice, " is named twice"));
  return layers;
}

}  // namespace fuseblock
