// The plot is written as one self-contained file, also of a report that holds nothing.
#include "client/cli/plot.h"

#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fuseblock::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Written(const std::string& name, const LoadReport& report) {
  const std::string path = testing::TempDir() + name;
  LoadPlan plan;
  plan.block = "m<1>.layers.0.mlp";
  EXPECT_TRUE(WritePlot(path, plan, report).ok());
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Plot, DrawsTheReport) {
  LoadReport report;
  report.seconds = 2;
  report.requests = 3;
  report.latencies_us = {100, 200, 4000};
  report.slices = {{1, 1, Describe({100})}, {2, 2, Describe({200, 4000})}};
  const std::string html = Written("plot.html", report);
  EXPECT_THAT(
      html, AllOf(HasSubstr("<!doctype html>"), HasSubstr("Latency by percentile"),
                  HasSubstr("m&lt;1>.layers.0.mlp"), HasSubstr("4.00 ms"), Not(HasSubstr("nan"))));
  EXPECT_THAT(Written("plot.svg", report), testing::StartsWith("<svg "));
}

TEST(Plot, DrawsAnEmptyReport) {
  LoadReport report;
  report.seconds = 1;
  EXPECT_THAT(Written("empty.svg", report), AllOf(HasSubstr("</svg>"), Not(HasSubstr("nan"))));
}

TEST(Plot, RefusesOtherEndingsBeforeTheRun) {
  EXPECT_TRUE(CheckPlotPath("a.html").ok());
  EXPECT_THAT(std::string(CheckPlotPath("a.pdf").message()), HasSubstr("a.pdf"));
}

}  // namespace
}  // namespace fuseblock::cli
