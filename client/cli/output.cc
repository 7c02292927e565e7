// Tables, colours, numbers and errors as the commands print them.
#include "client/cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/client.h"

namespace fuseblock::cli {
namespace {

bool Colours() {
  static const bool colours = isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  return colours;
}

const char* Escape(Colour colour) {
  switch (colour) {
    case Colour::kNone:
      return "";
    case Colour::kBold:
      return "\x1b[1m";
    case Colour::kDim:
      return "\x1b[2m";
    case Colour::kGreen:
      return "\x1b[32m";
    case Colour::kYellow:
      return "\x1b[33m";
    case Colour::kRed:
      return "\x1b[31m";
  }
  return "";
}

// Characters that a terminal shows: UTF-8's continuation bytes are none.
size_t Width(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

std::string Paint(Colour colour, std::string_view text) {
  if (colour == Colour::kNone || !Colours()) return std::string(text);
  return absl::StrCat(Escape(colour), std::string(text), "\x1b[0m");
}

bool ShowsProgress() { return isatty(STDERR_FILENO) == 1; }

void PrintTable(const std::vector<std::string>& heading,
                const std::vector<std::vector<Cell>>& rows) {
  std::vector<size_t> widths;
  widths.reserve(heading.size());
  for (const std::string& name : heading) widths.push_back(Width(name));
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i].text));
  }
  const auto print = [&](const std::vector<Cell>& row) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += Paint(row[i].colour, row[i].text);
      if (i + 1 < row.size()) line.append(widths[i] - Width(row[i].text) + 2, ' ');
    }
    std::printf("%s\n", line.c_str());
  };
  std::vector<Cell> first;
  first.reserve(heading.size());
  for (const std::string& name : heading) first.push_back({name, Colour::kBold});
  print(first);
  for (const auto& row : rows) print(row);
}

void PrintJson(const nlohmann::ordered_json& value) {
  std::printf("%s\n",
              value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

void PrintError(const absl::Status& status, bool json) {
  const client::Error error = client::ErrorOf(status);
  const std::string code = absl::StatusCodeToString(error.code);
  if (json) {
    const nlohmann::ordered_json value = {
        {"error",
         {{"code", code},
          {"reason", error.reason},
          {"message", error.message},
          {"retry_after_ms", absl::ToInt64Milliseconds(error.retry_after)}}}};
    std::fprintf(
        stderr, "%s\n",
        value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return;
  }
  std::string retry;
  if (error.retry_after > absl::ZeroDuration()) {
    retry = absl::StrCat(" (retry after ", absl::FormatDuration(error.retry_after), ")");
  }
  std::fprintf(stderr, "fuseblock: %s: %s%s\n",
               (error.reason.empty() ? code : error.reason).c_str(), error.message.c_str(),
               retry.c_str());
}

std::string Grouped(int64_t value) {
  const std::string digits = absl::StrCat(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool between = i > 0 && digits[i - 1] != '-';
    if (between && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string BytesText(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, value, kUnits[unit]);
}

std::string MicrosecondsText(double us) {
  if (us < 1e3) return absl::StrFormat("%.1f us", us);
  if (us < 1e6) return absl::StrFormat("%.2f ms", us / 1e3);
  return absl::StrFormat("%.2f s", us / 1e6);
}

}  // namespace fuseblock::cli
