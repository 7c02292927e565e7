#include "server/observe/html.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fuseblock::html {
namespace {

void AddRow(const char* tag, const Row& cells, std::string* out) {
  absl::StrAppend(out, "<tr>");
  for (const Cell& cell : cells) {
    absl::StrAppend(out, "<", tag, cell.number ? " class=\"n\">" : ">", cell.html, "</", tag, ">");
  }
  absl::StrAppend(out, "</tr>\n");
}

}  // namespace

std::string Escaped(std::string_view text) {
  static constexpr std::pair<char, const char*> kEntities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  out.reserve(text.size());
  for (const char c : text.substr(0, kTextBytesMax)) {
    const auto* entity = std::find_if(std::begin(kEntities), std::end(kEntities),
                                      [c](const auto& one) { return one.first == c; });
    if (entity != std::end(kEntities)) {
      out += entity->second;
    } else {
      out += c;
    }
  }
  if (text.size() > kTextBytesMax) out += "...";
  return out;
}

std::string Count(int64_t value) {
  std::string digits = absl::StrCat(value < 0 ? -value : value);
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return absl::StrCat(value < 0 ? "-" : "", digits);
}

std::string Bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  if (unit == 0) return absl::StrCat(bytes, " B");
  return absl::StrFormat("%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, kUnits[unit]);
}

std::string Span(absl::Duration span) {
  const int64_t s = absl::ToInt64Seconds(span);
  if (s < 60) return absl::StrCat(s, " s");
  if (s < 3600) return absl::StrCat(s / 60, " min ", s % 60, " s");
  if (s < 86400) return absl::StrCat(s / 3600, " h ", s % 3600 / 60, " min");
  return absl::StrCat(s / 86400, " d ", s % 86400 / 3600, " h");
}

Cell Plain(std::string_view text) { return {Escaped(text)}; }
Cell Code(std::string_view text) { return {absl::StrCat("<code>", Escaped(text), "</code>")}; }
Cell Number(std::string text) { return {std::move(text), true}; }

Cell Marked(bool good, std::string_view text, std::string_view reason) {
  std::string html =
      absl::StrCat("<span class=\"", good ? "good" : "bad", "\">", Escaped(text), "</span>");
  if (!reason.empty()) absl::StrAppend(&html, " ", Escaped(reason));
  return {std::move(html)};
}

Cell Used(int64_t used, int64_t limit, std::string (*text)(int64_t)) {
  if (limit <= 0) return {text(used)};
  const double share = std::clamp(static_cast<double>(used) / static_cast<double>(limit), 0.0, 1.0);
  return {
      absl::StrFormat("%s <span class=\"dim\">of %s</span><span class=\"track%s\">"
                      "<i style=\"width:%.1f%%\"></i></span>",
                      text(used), text(limit), used >= limit ? " full" : "", 100 * share)};
}

void AddTable(const char* title, const Row& heading, const std::vector<Row>& rows,
              const char* empty, size_t left_out, std::string* out) {
  absl::StrAppend(out, "<h2>", title, "</h2>\n");
  if (rows.empty()) {
    absl::StrAppend(out, "<p class=\"dim\">", empty, "</p>\n");
    return;
  }
  absl::StrAppend(out, "<div class=\"wide\"><table>\n");
  AddRow("th", heading, out);
  for (const Row& row : rows) AddRow("td", row, out);
  absl::StrAppend(out, "</table></div>\n");
  if (left_out == 0) return;
  absl::StrAppend(out, "<p class=\"dim\">And ", Count(static_cast<int64_t>(left_out)),
                  " more.</p>\n");
}

}  // namespace fuseblock::html
