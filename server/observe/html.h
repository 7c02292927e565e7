// Tables of text and numbers as plain HTML: no scripts, and every text escaped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace fuseblock::html {

// Longer texts are cut: a page stays of a size whatever its texts are.
inline constexpr size_t kTextBytesMax = 400;

std::string Escaped(std::string_view text);

std::string Count(int64_t value);       // 1234567 -> "1,234,567"
std::string Bytes(int64_t bytes);       // 1536 -> "1.50 KiB"
std::string Span(absl::Duration span);  // "3 d 4 h", "4 h 5 min", "12 s": two units are enough

struct Cell {
  std::string html;
  bool number = false;  // set to the right
};
using Row = std::vector<Cell>;

Cell Plain(std::string_view text);
Cell Code(std::string_view text);
Cell Number(std::string text);
Cell Marked(bool good, std::string_view text, std::string_view reason);
// "2,048 of 65,536" over a bar as long as its share; of no limit (0) the number alone. text: how
// numbers are written.
Cell Used(int64_t used, int64_t limit, std::string (*text)(int64_t));

// A heading with a table under it, or with what is said when it has no rows; below it how many rows
// were left out, if any.
void AddTable(const char* title, const Row& heading, const std::vector<Row>& rows,
              const char* empty, size_t left_out, std::string* out);

}  // namespace fuseblock::html
