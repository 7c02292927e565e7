// The charts of a load report, and the files they are written to: one drawing serves every format.
#include "client/cli/plot.h"

#include <cairo-svg.h>

#include <array>
#include <cmath>
#include <fstream>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/chart.h"
#include "client/cli/output.h"

namespace fuseblock::cli {
namespace {

constexpr uint32_t kBlue = 0x1f6feb, kGreen = 0x1a7f37, kRed = 0xcf222e;

std::string LatencyText(double us) { return us == 0 ? "0" : MicrosecondsText(us); }

std::string CountText(double value) { return Grouped(std::llround(value)); }

// Percentiles on a scale that gives each nine the same room.
Chart PercentileChart(const LoadReport& report) {
  Chart chart{
      "Latency by percentile", "share of requests that took no longer", {}, {}, 4, LatencyText};
  Chart::Line line{"latency", kBlue, {}};
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
  const double step = ChartStep(seconds);
  for (double t = 0; t <= seconds * 1.0001; t += step) {
    ticks.emplace_back(t, absl::StrFormat("%g s", t));
  }
  return ticks;
}

template <typename Value>
Chart::Line OverTime(const char* name, uint32_t rgb, const LoadReport& report, Value value) {
  Chart::Line line{name, rgb, {}};
  for (const Slice& slice : report.slices) line.points.emplace_back(slice.end_s, value(slice));
  return line;
}

Chart RateChart(const LoadReport& report) {
  return {"Requests per second",
          "time",
          {OverTime("answered", kGreen, report, [](const Slice& s) { return s.requests_per_s; })},
          TimeTicks(report.seconds),
          report.seconds,
          CountText};
}

Chart LatencyChart(const LoadReport& report) {
  return {"Latency over time",
          "time",
          {OverTime("p99", kRed, report, [](const Slice& s) { return s.latency_us.p99; }),
           OverTime("p50", kBlue, report, [](const Slice& s) { return s.latency_us.p50; })},
          TimeTicks(report.seconds),
          report.seconds,
          LatencyText};
}

constexpr int kHeadHeight = 52, kMargin = 12;
constexpr int kPictureHeight = kHeadHeight + 3 * Chart::kHeight + kMargin;
// Of a PNG: sharp on a screen of twice the usual resolution too.
constexpr int kPngScale = 2;

struct Picture {
  std::string block, conditions;
  std::array<Chart, 3> charts;

  void Draw(cairo_t* cr) const {
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    DrawTitle(cr, kMargin, 22, block);
    DrawText(cr, kMargin, 40, Align::kLeft, conditions);
    double top = kHeadHeight;
    for (const Chart& chart : charts) {
      chart.Draw(cr, top);
      top += Chart::kHeight;
    }
  }
};

Picture PictureOf(const LoadPlan& plan, const LoadReport& report) {
  const std::string tokens = plan.tokens_min == plan.tokens_max
                                 ? absl::StrCat(plan.tokens_min)
                                 : absl::StrCat(plan.tokens_min, " to ", plan.tokens_max);
  return {plan.block,
          absl::StrFormat("%s on %s, %s tokens a request, %d in flight: %s requests/s",
                          report.dtype, report.backend, tokens, plan.concurrency,
                          CountText(report.RequestsPerSecond())),
          {PercentileChart(report), RateChart(report), LatencyChart(report)}};
}

using Surface = std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)>;

cairo_status_t Append(void* text, const unsigned char* data, unsigned int size) {
  static_cast<std::string*>(text)->append(reinterpret_cast<const char*>(data), size);
  return CAIRO_STATUS_SUCCESS;
}

absl::Status DrawOn(cairo_surface_t* surface, const Picture& picture) {
  const std::unique_ptr<cairo_t, decltype(&cairo_destroy)> cr(cairo_create(surface), cairo_destroy);
  picture.Draw(cr.get());
  if (cairo_status(cr.get()) == CAIRO_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the plot: ", cairo_status_to_string(cairo_status(cr.get()))));
}

absl::StatusOr<std::string> Png(const Picture& picture) {
  const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, kPngScale * Chart::kWidth,
                                                   kPngScale * kPictureHeight),
                        cairo_surface_destroy);
  cairo_surface_set_device_scale(surface.get(), kPngScale, kPngScale);
  if (absl::Status status = DrawOn(surface.get(), picture); !status.ok()) return status;
  std::string png;
  cairo_surface_write_to_png_stream(surface.get(), Append, &png);
  return png;
}

absl::StatusOr<std::string> Svg(const Picture& picture) {
  std::string svg;
  const Surface surface(
      cairo_svg_surface_create_for_stream(Append, &svg, Chart::kWidth, kPictureHeight),
      cairo_surface_destroy);
  cairo_svg_surface_set_document_unit(surface.get(), CAIRO_SVG_UNIT_PX);
  if (absl::Status status = DrawOn(surface.get(), picture); !status.ok()) return status;
  cairo_surface_finish(surface.get());
  return svg;
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}});
}

absl::StatusOr<std::string> Html(const Picture& picture) {
  absl::StatusOr<std::string> svg = Svg(picture);
  if (!svg.ok()) return svg;
  svg->erase(0, svg->find("<svg"));  // the XML declaration
  return absl::StrFormat(
      "<!doctype html><html lang='en'><meta charset='utf-8'><title>%s: %s</title>\n%s</html>\n",
      Escaped(picture.block), Escaped(picture.conditions), *svg);
}

struct Format {
  const char* ending;
  absl::StatusOr<std::string> (*encode)(const Picture&);
};
constexpr Format kFormats[] = {{".html", Html}, {".png", Png}, {".svg", Svg}};

// The format of the path's ending, or null.
const Format* FormatOf(const std::string& path) {
  for (const Format& format : kFormats) {
    if (absl::EndsWith(path, format.ending)) return &format;
  }
  return nullptr;
}

}  // namespace

absl::Status CheckPlotPath(const std::string& path) {
  if (FormatOf(path) != nullptr) return absl::OkStatus();
  const auto ending = [](std::string* out, const Format& format) { *out += format.ending; };
  return absl::InvalidArgumentError(absl::StrCat("--plot: expected a name that ends in one of ",
                                                 absl::StrJoin(kFormats, ", ", ending), "; got ",
                                                 path));
}

absl::Status WritePlot(const std::string& path, const LoadPlan& plan, const LoadReport& report) {
  if (absl::Status status = CheckPlotPath(path); !status.ok()) return status;
  const absl::StatusOr<std::string> bytes = FormatOf(path)->encode(PictureOf(plan, report));
  if (!bytes.ok()) return bytes.status();
  std::ofstream out(path, std::ios::binary);
  out << *bytes;
  out.close();
  if (out) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path, ": can't be written"));
}

}  // namespace fuseblock::cli
