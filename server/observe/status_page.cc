#include "server/observe/status_page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/observe/html.h"

namespace fuseblock {
namespace {

using html::AddTable;
using html::Bytes;
using html::Code;
using html::Count;
using html::Escaped;
using html::Marked;
using html::Number;
using html::Plain;
using html::Row;
using html::Used;

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
    ".track{display:block;width:9rem;height:.4rem;margin:.2rem 0;background:var(--track);"
    "border-radius:.2rem;overflow:hidden}\n"
    ".track i{display:block;height:100%;background:var(--bar)}.full i{background:var(--bad)}\n"
    ".wide{overflow-x:auto}\n"
    "</style>\n</head>\n<body>\n";

void AddDevices(const StatusPage& page, std::string* out) {
  std::vector<Row> devices, lanes;
  for (const StatusPage::Device& device : page.devices) {
    const int64_t sum = device.weights_bytes + device.staging_bytes + device.workspace_bytes;
    devices.push_back({Plain(device.name),
                       Marked(device.health == "healthy", device.health, device.reason),
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
           devices, "None.", 0, out);
  AddTable("Lanes",
           {Plain("device"), Number("lane"), Plain("state"), Number("batches"),
            Number("tokens of the last batch")},
           lanes, "None.", 0, out);
}

std::string TermsText(const std::vector<StatusPage::Term>& terms) {
  return absl::StrJoin(terms, " + ", [](std::string* out, const StatusPage::Term& term) {
    absl::StrAppend(out, term.name, " ", Bytes(term.bytes));
  });
}

// "weights 1.00 GiB + 2 lanes x (tensors 3.00 MiB + workspace 100 MiB)"
std::string TermsText(const StatusPage::Sum& sum) {
  std::string shared = TermsText(sum.shared);
  if (sum.of_a_lane.empty()) return shared;
  return absl::StrCat(shared, shared.empty() ? "" : " + ", sum.lanes,
                      sum.lanes == 1 ? " lane" : " lanes", " \u00d7 (", TermsText(sum.of_a_lane),
                      ")");
}

void AddMemory(const StatusPage& page, std::string* out) {
  std::vector<Row> rows;
  for (const StatusPage::Sum& sum : page.memory) {
    rows.push_back({Plain(sum.device), Plain(sum.where), Used(sum.bytes, sum.bytes_max, Bytes),
                    Plain(TermsText(sum))});
  }
  AddTable("Memory plan", {Plain("device"), Plain("where"), Plain("sum"), Plain("terms")}, rows,
           "None.", 0, out);
}

void AddPlacement(const StatusPage& page, std::string* out) {
  if (page.placed.empty()) return;
  std::vector<Row> rows;
  for (const StatusPage::Placed& placed : page.placed) {
    rows.push_back({Plain(placed.sum.device), Plain(placed.units),
                    Used(placed.sum.bytes, placed.sum.bytes_max, Bytes),
                    Plain(TermsText(placed.sum))});
  }
  AddTable("Placement of the newest load",
           {Plain("device"), Plain("units"), Plain("planned of what was free"), Plain("terms")},
           rows, "", 0, out);
}

void AddBudgets(const StatusPage& page, std::string* out) {
  std::vector<Row> rows;
  for (const StatusPage::Budget& budget : page.budgets) {
    const auto text = budget.bytes ? Bytes : Count;
    rows.push_back({Plain(budget.what), Used(budget.admitted, budget.admitted_max, text),
                    Plain(text(budget.waiting))});
  }
  AddTable("Budgets", {Plain("of all"), Plain("admitted"), Plain("of which wait")}, rows, "None.",
           0, out);
}

void AddTenants(const StatusPage& page, std::string* out) {
  std::vector<Row> rows;
  for (const StatusPage::Tenant& tenant : page.tenants) {
    rows.push_back({Code(tenant.name), Used(tenant.requests, tenant.requests_max, Count),
                    Used(tenant.tokens, tenant.tokens_max, Count),
                    Used(tenant.bytes, tenant.bytes_max, Bytes)});
  }
  AddTable("Tenants with a quota",
           {Plain("tenant"), Plain("requests admitted"), Plain("tokens"), Plain("bytes")}, rows,
           "None has anything admitted.", page.tenants_left_out, out);
}

void AddQueues(const StatusPage& page, std::string* out) {
  std::vector<Row> rows;
  for (const StatusPage::Queue& queue : page.queues) {
    rows.push_back({Code(queue.block), Number(Count(queue.requests)), Number(Count(queue.tokens)),
                    Number(Bytes(queue.bytes))});
  }
  AddTable("Busiest queues",
           {Plain("block"), Number("requests"), Number("tokens"), Number("bytes")}, rows,
           "Nothing waits.", 0, out);
}

void AddBlocks(const StatusPage& page, std::string* out) {
  std::vector<Row> rows;
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
           rows, "None is loaded.", page.blocks_left_out, out);
}

void AddShadows(const StatusPage& page, std::string* out) {
  if (page.shadows.empty()) return;
  std::vector<Row> rows;
  for (const StatusPage::Shadow& shadow : page.shadows) {
    rows.push_back({Code(shadow.name), Plain(shadow.against),
                    Number(absl::StrFormat("%.3g %%", 100 * shadow.share))});
  }
  AddTable("Shadow runs", {Plain("of"), Plain("compared with"), Number("share of requests")}, rows,
           "", 0, out);
}

}  // namespace

std::string RenderStatusPage(const StatusPage& page) {
  std::string out = kHead;
  absl::StrAppend(&out, "<h1>fuseblock-server ", Escaped(page.version), " <span class=\"",
                  page.state == "serving" ? "good" : "bad", "\">", Escaped(page.state),
                  "</span></h1>\n", "<p class=\"dim\">commit <code>", Escaped(page.commit),
                  "</code> · CPU kernels ", Escaped(page.isa), " · CUDA ", Escaped(page.cuda),
                  " · up ", html::Span(page.now - page.started), ", since ",
                  absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", page.started, absl::UTCTimeZone()),
                  "</p>\n");
  AddDevices(page, &out);
  AddBudgets(page, &out);
  AddTenants(page, &out);
  AddQueues(page, &out);
  AddMemory(page, &out);
  AddPlacement(page, &out);
  AddBlocks(page, &out);
  AddShadows(page, &out);
  absl::StrAppend(&out, "</body>\n</html>\n");
  return out;
}

}  // namespace fuseblock
