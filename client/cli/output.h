// What the commands print: tables for people, JSON for machines, colour only on a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace fuseblock::cli {

enum class Colour { kNone, kBold, kDim, kGreen, kYellow, kRed };

// The text in that colour, or as it is where standard output is no terminal or NO_COLOR is set.
std::string Paint(Colour colour, std::string_view text);

// Whether standard error is a terminal: where progress is shown.
bool ShowsProgress();

struct Cell {
  std::string text;
  Colour colour = Colour::kNone;
};

// Rows under a heading, columns as wide as their widest cell. Numbers are the caller's to align.
void PrintTable(const std::vector<std::string>& heading,
                const std::vector<std::vector<Cell>>& rows);

void PrintJson(const nlohmann::ordered_json& value);

// A failed command, on standard error: reason, message, and when to retry; as JSON when asked for.
void PrintError(const absl::Status& status, bool json);

// 1234567 -> "1,234,567"
std::string Grouped(int64_t value);
// 93000000 -> "88.7 MiB"
std::string BytesText(int64_t bytes);
// 81.25 -> "81.2 us", 12345 -> "12.3 ms"
std::string MicrosecondsText(double us);

}  // namespace fuseblock::cli
