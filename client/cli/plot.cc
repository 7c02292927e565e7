// Draws the charts as SVG by hand: two axes, a grid, lines and a legend are all that is needed.
#include "client/cli/plot.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/output.h"

namespace fuseblock::cli {
namespace {

constexpr int kWidth = 760, kHeight = 240, kLeft = 80, kRight = 110, kTop = 34, kBottom = 40;

struct Line {
  const char* name;
  const char* colour;
  std::vector<std::pair<double, double>> points;
};

struct Chart {
  std::string title, x_label;
  std::vector<Line> lines;
  std::vector<std::pair<double, std::string>> x_ticks;
  double x_max = 1;
  std::string (*y_text)(double) = nullptr;
};

std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

// The least of 1, 2, 5 times a power of ten that is at least a quarter of the value: about four
// grid lines.
double Step(double most) {
  const double rough = std::max(most, 1e-9) / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x='%.1f' y='%.1f' text-anchor='%s'>%s</text>\n", x, y, anchor,
                         Escaped(text));
}

std::string Svg(const Chart& chart, int top) {
  double most = 0;
  for (const Line& line : chart.lines) {
    for (const auto& [x, y] : line.points) most = std::max(most, y);
  }
  const double step = Step(most);
  const double y_max = step * std::max(1.0, std::ceil(most / step));
  const int bottom = top + kHeight - kBottom;
  const auto x_at = [&](double x) { return kLeft + x / chart.x_max * (kWidth - kLeft - kRight); };
  const auto y_at = [&](double y) { return bottom - y / y_max * (kHeight - kTop - kBottom); };
  std::string svg = absl::StrFormat("<text x='%d' y='%d' class='title'>%s</text>\n", kLeft,
                                    top + kTop - 14, Escaped(chart.title));
  for (double y = 0; y <= y_max * 1.0001; y += step) {
    absl::StrAppendFormat(&svg, "<path class='grid' d='M%d %.1fH%d'/>\n", kLeft, y_at(y),
                          kWidth - kRight);
    svg += Text(kLeft - 8, y_at(y) + 4, "end", chart.y_text(y));
  }
  for (const auto& [x, label] : chart.x_ticks) svg += Text(x_at(x), bottom + 16, "middle", label);
  svg += Text((kLeft + kWidth - kRight) / 2.0, bottom + 32, "middle", chart.x_label);
  int legend = top + kTop;
  for (const Line& line : chart.lines) {
    std::string path;
    for (const auto& [x, y] : line.points) {
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", x_at(x), y_at(y));
    }
    absl::StrAppendFormat(&svg, "<path class='line' stroke='%s' d='%s'/>\n", line.colour, path);
    absl::StrAppendFormat(&svg, "<rect x='%d' y='%d' width='12' height='3' fill='%s'/>\n",
                          kWidth - kRight + 12, legend - 4, line.colour);
    svg += Text(kWidth - kRight + 30, legend, "start", line.name);
    legend += 18;
  }
  return svg;
}

std::string CountText(double value) { return Grouped(std::llround(value)); }

// Percentiles on a scale that gives each nine the same room.
Chart PercentileChart(const LoadReport& report) {
  Chart chart{"Latency by percentile", "share of requests that took no longer", {}, {}, 4,
              MicrosecondsText};
  Line line{"latency", "#1f6feb", {}};
  const auto& sorted = report.latencies_us;
  for (double nines = 0; nines <= 4.0001 && !sorted.empty(); nines += 0.05) {
    const double above = std::pow(10, -nines) * static_cast<double>(sorted.size());
    if (above < 1) break;  // no sample lies there
    const auto at = static_cast<size_t>(static_cast<double>(sorted.size()) - above);
    line.points.emplace_back(nines, sorted[std::min(at, sorted.size() - 1)]);
  }
  chart.lines.push_back(std::move(line));
  chart.x_ticks = {{0.30103, "50 %"}, {1, "90 %"}, {2, "99 %"}, {3, "99.9 %"}, {4, "99.99 %"}};
  return chart;
}

std::vector<std::pair<double, std::string>> TimeTicks(double seconds) {
  std::vector<std::pair<double, std::string>> ticks;
  const double step = Step(seconds);
  for (double t = 0; t <= seconds * 1.0001; t += step) {
    ticks.emplace_back(t, absl::StrFormat("%g s", t));
  }
  return ticks;
}

template <typename Value>
Line OverTime(const char* name, const char* colour, const LoadReport& report, Value value) {
  Line line{name, colour, {}};
  for (const Slice& slice : report.slices) line.points.emplace_back(slice.end_s, value(slice));
  return line;
}

Chart RateChart(const LoadReport& report) {
  return {
      "Requests per second",
      "time",
      {OverTime("answered", "#1a7f37", report, [](const Slice& s) { return s.requests_per_s; })},
      TimeTicks(report.seconds),
      report.seconds,
      CountText};
}

Chart LatencyChart(const LoadReport& report) {
  return {"Latency over time",
          "time",
          {OverTime("p99", "#cf222e", report, [](const Slice& s) { return s.latency_us.p99; }),
           OverTime("p50", "#1f6feb", report, [](const Slice& s) { return s.latency_us.p50; })},
          TimeTicks(report.seconds),
          report.seconds,
          MicrosecondsText};
}

std::string Document(const LoadPlan& plan, const LoadReport& report) {
  const std::string tokens = plan.tokens_min == plan.tokens_max
                                 ? absl::StrCat(plan.tokens_min)
                                 : absl::StrCat(plan.tokens_min, " to ", plan.tokens_max);
  const std::string title = absl::StrFormat(
      "%s, %s on %s: %s tokens a request, %d in flight, %s requests/s", plan.block, report.dtype,
      report.backend, tokens, plan.concurrency, CountText(report.RequestsPerSecond()));
  std::string svg = absl::StrFormat(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d'>\n"
      "<style>text{font:12px sans-serif;fill:#333}.title{font-weight:600;font-size:14px}"
      ".grid{stroke:#ddd;fill:none}.line{fill:none;stroke-width:1.8}</style>\n"
      "<rect width='100%%' height='100%%' fill='#fff'/>\n",
      kWidth, 3 * kHeight + 40, kWidth);
  absl::StrAppendFormat(&svg, "<text x='12' y='24' class='title'>%s</text>\n", Escaped(title));
  int top = 30;
  for (const Chart& chart : {PercentileChart(report), RateChart(report), LatencyChart(report)}) {
    svg += Svg(chart, top);
    top += kHeight;
  }
  return svg + "</svg>\n";
}

}  // namespace

absl::Status CheckPlotPath(const std::string& path) {
  if (absl::EndsWith(path, ".html") || absl::EndsWith(path, ".svg")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--plot: expected a name that ends in .html or .svg, got ", path));
}

absl::Status WritePlot(const std::string& path, const LoadPlan& plan, const LoadReport& report) {
  std::ofstream out(path);
  const std::string svg = Document(plan, report);
  if (absl::EndsWith(path, ".html")) {
    out << "<!doctype html><meta charset='utf-8'><title>" << Escaped(plan.block) << "</title>\n"
        << svg;
  } else {
    out << svg;
  }
  out.close();
  if (out) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path, ": can't be written"));
}

}  // namespace fuseblock::cli
