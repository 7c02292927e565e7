// A load report as a picture in one file, with nothing fetched from anywhere.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/cli/load.h"

namespace fuseblock::cli {

// Writes latency by percentile, and throughput and latency over time. path ends in .html,
// .png or .svg.
absl::Status WritePlot(const std::string& path, const LoadPlan& plan, const LoadReport& report);

// Whether WritePlot takes the path: asked before the load is run.
absl::Status CheckPlotPath(const std::string& path);

}  // namespace fuseblock::cli
