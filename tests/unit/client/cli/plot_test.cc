// The plot is written as one self-contained file in each format, also of a report that holds
// nothing.
#include "client/cli/plot.h"

#include <cairo.h>

#include <fstream>
#include <sstream>

#include "client/cli/chart.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fuseblock::cli {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr uint32_t kBlue = 0x1f6feb, kGreen = 0x1a7f37, kRed = 0xcf222e;

LoadReport Report() {
  LoadReport report;
  report.seconds = 2;
  report.requests = 3;
  report.latencies_us = {100, 200, 4000};
  report.slices = {{1, 1, Describe({100})}, {2, 2, Describe({200, 4000})}};
  return report;
}

LoadReport EmptyReport() {
  LoadReport report;
  report.seconds = 1;
  return report;
}

std::string PathOf(const std::string& name) { return testing::TempDir() + name; }

std::string Written(const std::string& name, const LoadReport& report) {
  LoadPlan plan;
  plan.block = "m<1>.layers.0.mlp";
  EXPECT_EQ(WritePlot(PathOf(name), plan, report), absl::OkStatus());
  std::ostringstream text;
  text << std::ifstream(PathOf(name)).rdbuf();
  return text.str();
}

// The pixels of one colour in a PNG.
int Pixels(const std::string& path, uint32_t rgb) {
  cairo_surface_t* surface = cairo_image_surface_create_from_png(path.c_str());
  EXPECT_EQ(cairo_surface_status(surface), CAIRO_STATUS_SUCCESS);
  const int width = cairo_image_surface_get_width(surface);
  const int height = cairo_image_surface_get_height(surface);
  const int stride = cairo_image_surface_get_stride(surface);
  EXPECT_EQ(width, 2 * Chart::kWidth);
  int count = 0;
  for (int y = 0; y < height; ++y) {
    const auto* row =
        reinterpret_cast<const uint32_t*>(cairo_image_surface_get_data(surface) + y * stride);
    for (int x = 0; x < width; ++x) count += (row[x] & 0xffffff) == rgb;
  }
  cairo_surface_destroy(surface);
  return count;
}

TEST(Plot, APngShowsTheLines) {
  Written("plot.png", Report());
  Written("empty.png", EmptyReport());
  for (const uint32_t rgb : {kBlue, kGreen, kRed}) {
    // What a legend takes is there anyway; a line across the chart is much longer.
    const int legend = Pixels(PathOf("empty.png"), rgb);
    EXPECT_GT(legend, 0);
    EXPECT_GT(Pixels(PathOf("plot.png"), rgb), 4 * legend) << std::hex << rgb;
  }
}

TEST(Plot, AnHtmlHoldsTheDrawingAndItsName) {
  const std::string html = Written("plot.html", Report());
  EXPECT_THAT(html, AllOf(StartsWith("<!doctype html>"), HasSubstr("<title>m&lt;1>.layers.0.mlp:"),
                          HasSubstr("2 requests/s")));
  EXPECT_THAT(html, AllOf(HasSubstr("\n<svg "), Not(HasSubstr("<?xml")), EndsWith("</html>\n")));
}

TEST(Plot, AnSvgIsTheSameDrawing) {
  for (const LoadReport& report : {Report(), EmptyReport()}) {
    EXPECT_THAT(Written("plot.svg", report),
                AllOf(StartsWith("<?xml"), EndsWith("</svg>\n"), HasSubstr("width=\"760px\""),
                      Not(HasSubstr("nan"))));
  }
}

TEST(Plot, SaysWhatItCanNotWrite) {
  const absl::Status status = WritePlot("/no/such/folder/plot.png", LoadPlan(), Report());
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/folder/plot.png"));
}

TEST(Plot, RefusesOtherEndingsBeforeTheRun) {
  for (const char* path : {"a.html", "a.png", "a.svg"}) EXPECT_TRUE(CheckPlotPath(path).ok());
  EXPECT_THAT(std::string(CheckPlotPath("a.pdf").message()),
              AllOf(HasSubstr(".html, .png, .svg"), HasSubstr("a.pdf")));
}

TEST(ChartStep, DividesIntoAtMostFourRoundParts) {
  EXPECT_DOUBLE_EQ(ChartStep(4), 1);
  EXPECT_DOUBLE_EQ(ChartStep(4.1), 2);
  EXPECT_DOUBLE_EQ(ChartStep(19), 5);
  EXPECT_DOUBLE_EQ(ChartStep(39), 10);
  EXPECT_DOUBLE_EQ(ChartStep(0.08), 0.02);
  EXPECT_GT(ChartStep(0), 0);
}

}  // namespace
}  // namespace fuseblock::cli
