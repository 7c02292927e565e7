// The status page as text: everything is on it, readable, and nothing that came from outside is
// taken for HTML.
#include "server/observe/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fuseblock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StatusPage Example() {
  StatusPage page;
  page.version = "1.2.3";
  page.commit = "abcdef";
  page.cuda = "none";
  page.isa = "AVX2";
  page.state = "serving";
  page.started = absl::FromUnixSeconds(1000000000);
  page.now = page.started + absl::Hours(27) + absl::Minutes(3);
  page.devices = {
      {"cuda:0", "healthy", "", int64_t{5} << 30, 3 << 20, 100, {{true, 1234567, 256}, {}}},
      {"cpu", "quarantined", "launch failed", 0, 0, 0, {}}};
  page.memory = {{"cuda:0",
                  "on the device",
                  {{"weights", 1 << 20}, {"graphs", 512}},
                  2,
                  {{"tensors", 1024}, {"workspace", 2048}},
                  (1 << 20) + 512 + 2 * 3072,
                  1 << 21}};
  page.placed = {
      {"4 units: m.layers.0, ...", {"cuda:0", "", {{"weights", 700}}, 0, {}, 700, 1000}}};
  page.budgets = {{"tokens", 2048, 65536, 1500, false},
                  {"bytes", 0, 1 << 30, 0, true},
                  {"requests", 3, 0, 1, false}};
  page.tenants = {{"acme", 2, 0, 150, 100, 1 << 20, 1 << 22}};
  page.queues = {{"m.layers.0.mlp", 3, 2048, 1 << 20}};
  page.blocks = {{"m.layers.0.mlp", "mlp", "BF16", "ready", "", "1", true, "1, 2",
                  "0123456789abcdef0123", 1536, 9876543, 12}};
  page.shadows = {{"m", "revision 2 on cpu", 0.125}};
  return page;
}

TEST(StatusPageTest, ShowsWhatThereIsInReadableUnits) {
  const std::string html = RenderStatusPage(Example());
  for (const char* text :
       {"fuseblock-server 1.2.3", "<code>abcdef</code>", "AVX2", "CUDA none", "up 1 d 3 h",
        "since 2001-09-09 01:46:40 UTC", "<span class=\"good\">serving</span>",
        // devices and lanes
        "<span class=\"good\">healthy</span>",
        "<span class=\"bad\">quarantined</span> launch failed", "5.00 GiB", "3.00 MiB", "100 B",
        "<td>busy</td><td class=\"n\">1,234,567</td>", "<td class=\"n\">256</td>", "<td>idle</td>",
        // budgets, tenants and queues
        "2,048 <span class=\"dim\">of 65,536</span>", "width:3.1%", "of 1.00 GiB", "<td>1,500</td>",
        "<td>requests</td><td>3</td><td>1</td>",
        "<td><code>acme</code></td><td>2</td><td>150 <span class=\"dim\">of 100</span>"
        "<span class=\"track full\"><i style=\"width:100.0%\"></i></span></td>",
        "width:25.0%",
        // memory and placement
        "<td>on the device</td><td>1.01 MiB <span class=\"dim\">of 2.00 MiB</span>",
        "<td>weights 1.00 MiB + graphs 512 B + 2 lanes \u00d7 (tensors 1.00 KiB + workspace 2.00 "
        "KiB)</td>",
        "<td>4 units: m.layers.0, ...</td><td>700 B <span class=\"dim\">of 1000 B</span>",
        "<td><code>m.layers.0.mlp</code></td><td class=\"n\">3</td><td class=\"n\">2,048</td>"
        "<td class=\"n\">1.00 MiB</td>",
        // blocks
        "<td>BF16</td>", "<td>1 (set)</td><td>1, 2</td><td><code>0123456789ab</code></td>",
        "<td class=\"n\">1.50 KiB</td><td class=\"n\">9,876,543</td><td class=\"n\">12</td>",
        "revision 2 on cpu", "12.5 %"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
}

TEST(StatusPageTest, RunsNothingAndFetchesNothing) {
  const std::string html = RenderStatusPage(Example());
  for (const char* text : {"<script", "http:", "https:", "src=", "href=", "@import", "url("}) {
    EXPECT_THAT(html, Not(HasSubstr(text)));
  }
}

TEST(StatusPageTest, EscapesEveryText) {
  const std::string evil = "<script>alert('&\"')</script>";
  StatusPage page = Example();
  for (std::string* text : {&page.version,
                            &page.commit,
                            &page.cuda,
                            &page.isa,
                            &page.state,
                            &page.devices[0].name,
                            &page.devices[1].health,
                            &page.devices[1].reason,
                            &page.memory[0].device,
                            &page.memory[0].where,
                            &page.memory[0].shared[0].name,
                            &page.memory[0].of_a_lane[0].name,
                            &page.placed[0].units,
                            &page.placed[0].sum.device,
                            &page.placed[0].sum.shared[0].name,
                            &page.budgets[0].what,
                            &page.tenants[0].name,
                            &page.queues[0].block,
                            &page.blocks[0].name,
                            &page.blocks[0].kind,
                            &page.blocks[0].dtype,
                            &page.blocks[0].state,
                            &page.blocks[0].reason,
                            &page.blocks[0].answering,
                            &page.blocks[0].revisions,
                            &page.blocks[0].content_hash,
                            &page.shadows[0].name,
                            &page.shadows[0].against}) {
    const std::string before = *text;
    *text = evil;
    const std::string html = RenderStatusPage(page);
    EXPECT_THAT(html, Not(HasSubstr("<script"))) << before;
    EXPECT_THAT(html, HasSubstr("&lt;script&gt;")) << before;
    *text = before;
  }
  page.blocks[0].name = evil;
  EXPECT_THAT(RenderStatusPage(page),
              HasSubstr("&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;"));
}

TEST(StatusPageTest, LongTextsAreCutAndWhatIsLeftOutIsCounted) {
  StatusPage page = Example();
  page.tenants_left_out = 12345;
  page.blocks_left_out = 7;
  page.blocks[0].reason = std::string(100000, '<');
  const std::string html = RenderStatusPage(page);
  EXPECT_LT(html.size(), 20000u);
  EXPECT_THAT(html, HasSubstr("&lt;&lt;..."));
  EXPECT_THAT(html, HasSubstr("And 12,345 more."));
  EXPECT_THAT(html, HasSubstr("And 7 more."));
}

TEST(StatusPageTest, AnEmptyServerHasAPageToo) {
  StatusPage page;
  page.state = "not serving";
  page.started = page.now = absl::FromUnixSeconds(0);
  const std::string html = RenderStatusPage(page);
  EXPECT_THAT(html, HasSubstr("<span class=\"bad\">not serving</span>"));
  EXPECT_THAT(html, HasSubstr("Nothing waits."));
  EXPECT_THAT(html, HasSubstr("None is loaded."));
  EXPECT_THAT(html, HasSubstr("up 0 s"));
}

}  // namespace
}  // namespace fuseblock
