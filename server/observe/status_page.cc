#include "server/observe/status_page.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fuseblock {
namespace {

constexpr char kHead[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n<title>fuseblock</title>\n<style>\n"
    ":root{color-scheme:light dark;--line:#d9dce1;--dim:#68707c;--good:#1a7f45;--bad:#c0262d;"
    "--bar:#3b74d9;--track:#e8eaee}\n"
    "@media(prefers-color-scheme:dark){:root{--line:#333a44;--dim:#98a2b0;--good:#5fce8b;"
    "--bad:#ff7b72;--bar:#6ea0ff;--track:#2a3039}}\n"
    "body{font:14px/1.45 system-ui,sans-serif;max-width:76rem;margin:1.5rem auto;padding:0 1rem}\n"
    "h1{font-size:1.4rem;margin:0 0 .25rem}h2{font-size:1.05rem;margin:1.75rem 0 .4rem}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:left;padding:.28rem .9rem .28rem 0;border-bottom:1px solid var(--line);"
    "vertical-align:top}\n"
    "th{font-weight:600;color:var(--dim);font-size:.86em}\n"
    "th.n,td.n{text-align:right;white-space:nowrap}code{font-size:.92em}\n"
    ".dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}\n"
    ".track{display:inline-block;width:9rem;height:.6rem;"
    "background:var(--track);border-radius:.3rem;overflow:hidden}\n"
    ".track i{display:block;height:100%;background:var(--bar)}\n"
    "</style>\n</head>\n<body>\n";

std::string Escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// 1234567 -> "1,234,567"
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

// "3 d 4 h", "4 h 5 min", "12 s": two units are enough.
std::string Span(absl::Duration duration) {
  const int64_t s = absl::ToInt64Seconds(duration);
  if (s < 60) return absl::StrCat(s, " s");
  if (s < 3600) return absl::StrCat(s / 60, " min ", s % 60, " s");
  if (s < 86400) return absl::StrCat(s / 3600, " h ", s % 3600 / 60, " min");
  return absl::StrCat(s / 86400, " d ", s % 86400 / 3600, " h");
}

// A cell as HTML.
struct Cell {
  std::string html;
  bool number = false;
};
Cell Plain(std::string_view text) { return {Escaped(text)}; }
Cell Code(std::string_view text) { return {absl::StrCat("<code>", Escaped(text), "</code>")}; }
Cell Number(std::string text) { return {std::move(text), true}; }
Cell Marked(bool good, std::string_view text, std::string_view reason) {
  std::string html =
      absl::StrCat("<span class=\"", good ? "good" : "bad", "\">", Escaped(text), "</span>");
  if (!reason.empty()) absl::StrAppend(&html, " ", Escaped(reason));
  return {std::move(html)};
}

void AddRow(const char* tag, const std::vector<Cell>& cells, std::string* out) {
  absl::StrAppend(out, "<tr>");
  for (const Cell& cell : cells) {
    absl::StrAppend(out, "<", tag, cell.number ? " class=\"n\">" : ">", cell.html, "</", tag, ">");
  }
  absl::StrAppend(out, "</tr>\n");
}

// A heading with a table under it, or with what is said when it has no rows.
void AddTable(const char* title, const std::vector<Cell>& heading,
              const std::vector<std::vector<Cell>>& rows, const char* empty, std::string* out) {
  absl::StrAppend(out, "<h2>", title, "</h2>\n");
  if (rows.empty()) {
    absl::StrAppend(out, "<p class=\"dim\">", empty, "</p>\n");
    return;
  }
  absl::StrAppend(out, "<table>\n");
  AddRow("th", heading, out);
  for (const auto& row : rows) AddRow("td", row, out);
  absl::StrAppend(out, "</table>\n");
}

void AddDevices(const StatusPage& page, std::string* out) {
  std::vector<std::vector<Cell>> devices, lanes;
  for (const StatusPage::Device& device : page.devices) {
    const int64_t sum = device.weights_bytes + device.staging_bytes + device.workspace_bytes;
    devices.push_back(
        {Plain(device.name),
         Marked(device.healthy, device.healthy ? "healthy" : "quarantined", device.reason),
         Number(Bytes(device.weights_bytes)), Number(Bytes(device.staging_bytes)),
         Number(Bytes(device.workspace_bytes)), Number(Bytes(sum))});
    for (size_t i = 0; i < device.lanes.size(); ++i) {
      const StatusPage::Lane& lane = device.lanes[i];
      lanes.push_back({Plain(device.name), Number(absl::StrCat(i)),
                       Plain(lane.busy ? "busy" : "idle"), Number(Count(lane.batches)),
                       Number(lane.batches > 0 ? Count(lane.last_batch_tokens) : "")});
    }
  }
  AddTable("Devices",
           {Plain("device"), Plain("health"), Number("weights"), Number("staging"),
            Number("workspace"), Number("sum")},
           devices, "None.", out);
  AddTable("Lanes",
           {Plain("device"), Number("lane"), Plain("state"), Number("batches"),
            Number("tokens of the last batch")},
           lanes, "None.", out);
}

void AddBudgets(const StatusPage& page, std::string* out) {
  std::vector<std::vector<Cell>> rows;
  for (const StatusPage::Budget& budget : page.budgets) {
    const double share =
        budget.limit > 0 ? static_cast<double>(budget.used) / static_cast<double>(budget.limit) : 0;
    const auto text = [&](int64_t value) { return budget.bytes ? Bytes(value) : Count(value); };
    rows.push_back(
        {Plain(budget.name),
         Number(text(budget.used)),
         Number(budget.limit > 0 ? text(budget.limit) : ""),
         Number(budget.limit > 0 ? absl::StrFormat("%.1f %%", 100 * share) : ""),
         {budget.limit > 0
              ? absl::StrFormat("<span class=\"track\"><i style=\"width:%.1f%%\"></i></span>",
                                100 * (share < 1 ? share : 1))
              : ""}});
  }
  AddTable("Budgets", {Plain("what"), Number("used"), Number("limit"), Number("share"), {""}}, rows,
           "None.", out);
}

void AddQueues(const StatusPage& page, std::string* out) {
  std::vector<std::vector<Cell>> rows;
  for (const StatusPage::Queue& queue : page.queues) {
    rows.push_back({Code(queue.block), Number(Count(queue.requests)), Number(Count(queue.tokens)),
                    Number(Bytes(queue.bytes))});
  }
  AddTable("Busiest queues",
           {Plain("block"), Number("requests"), Number("tokens"), Number("bytes")}, rows,
           "Nothing waits.", out);
}

void AddBlocks(const StatusPage& page, std::string* out) {
  std::vector<std::vector<Cell>> rows;
  for (const StatusPage::Block& block : page.blocks) {
    rows.push_back({Code(block.name), Plain(block.kind), Plain(block.dtype),
                    Marked(block.state == "ready", block.state, block.reason),
                    Plain(block.answering + (block.pinned ? " (set)" : "")), Plain(block.revisions),
                    Code(block.content_hash.substr(0, 12)), Number(Bytes(block.weights_bytes)),
                    Number(Count(block.requests)), Number(Count(block.errors))});
  }
  AddTable("Blocks",
           {Plain("block"), Plain("kind"), Plain("dtype"), Plain("state"), Plain("answers"),
            Plain("revisions"), Plain("content"), Number("weights"), Number("requests"),
            Number("errors")},
           rows, "None is loaded.", out);
}

void AddShadows(const StatusPage& page, std::string* out) {
  if (page.shadows.empty()) return;
  std::vector<std::vector<Cell>> rows;
  for (const StatusPage::Shadow& shadow : page.shadows) {
    rows.push_back({Code(shadow.name), Plain(shadow.against),
                    Number(absl::StrFormat("%.3g %%", 100 * shadow.share))});
  }
  AddTable("Shadow runs", {Plain("of"), Plain("compared with"), Number("share of requests")}, rows,
           "", out);
}

}  // namespace

std::string RenderStatusPage(const StatusPage& page) {
  std::string out = kHead;
  absl::StrAppend(&out, "<h1>fuseblock-server ", Escaped(page.version), " <span class=\"",
                  page.state == "serving" ? "good" : "bad", "\">", Escaped(page.state),
                  "</span></h1>\n", "<p class=\"dim\">commit <code>", Escaped(page.commit),
                  "</code> · CPU kernels ", Escaped(page.isa), " · CUDA ", Escaped(page.cuda),
                  " · up ", Span(page.now - page.started), ", since ",
                  absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", page.started, absl::UTCTimeZone()),
                  "</p>\n");
  AddDevices(page, &out);
  AddBudgets(page, &out);
  AddQueues(page, &out);
  AddBlocks(page, &out);
  AddShadows(page, &out);
  absl::StrAppend(&out, "</body>\n</html>\n");
  return out;
}

}  // namespace fuseblock
