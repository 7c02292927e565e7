// `fuseblock bench`: puts load on one block and reports throughput, latency, errors and phases.
#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/load.h"
#include "client/cli/output.h"
#include "client/cli/plot.h"

namespace fuseblock::cli {
namespace {

constexpr const char* kPhases[] = {"queue", "batch", "h2d", "compute", "d2h", "encode"};

struct BenchOptions {
  LoadPlan plan;
  std::string tokens = "1";
  std::string plot;
};

// "16" or "0-300".
absl::Status ParseTokens(const std::string& text, LoadPlan* plan) {
  const size_t dash = text.find('-');
  const bool range = dash != std::string::npos && dash > 0;
  const bool ok = absl::SimpleAtoi(text.substr(0, dash), &plan->tokens_min) &&
                  absl::SimpleAtoi(range ? text.substr(dash + 1) : text, &plan->tokens_max);
  if (!ok || plan->tokens_min < 0 || plan->tokens_max < plan->tokens_min) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokens: expected a number, or a range such as 0-300, got ", text));
  }
  return absl::OkStatus();
}

nlohmann::ordered_json Json(const Distribution& d) {
  return {{"count", d.count}, {"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90},
          {"p99", d.p99},     {"p999", d.p999}, {"max", d.max}};
}

nlohmann::ordered_json Json(const LoadPlan& plan, const LoadReport& report) {
  nlohmann::ordered_json json = {{"block", plan.block},
                                 {"dtype", report.dtype},
                                 {"backend", report.backend},
                                 {"tokens_min", plan.tokens_min},
                                 {"tokens_max", plan.tokens_max},
                                 {"concurrency", plan.concurrency},
                                 {"rate", plan.rate},
                                 {"seconds", report.seconds},
                                 {"requests", report.requests},
                                 {"requests_per_s", report.RequestsPerSecond()},
                                 {"tokens_per_s", report.TokensPerSecond()},
                                 {"latency_us", Json(Describe(report.latencies_us))},
                                 {"errors", report.errors}};
  for (const auto& [phase, d] : report.phases_us) json["phases_us"][phase] = Json(d);
  for (const Slice& slice : report.slices) {
    json["slices"].push_back({{"end_s", slice.end_s},
                              {"requests_per_s", slice.requests_per_s},
                              {"p50_us", slice.latency_us.p50},
                              {"p99_us", slice.latency_us.p99}});
  }
  return json;
}

void ShowProgress(const LoadPlan& plan, const Slice& slice) {
  constexpr int kBar = 24;
  const int done = static_cast<int>(std::lround(kBar * slice.end_s / plan.duration_s));
  std::fprintf(stderr, "\r\x1b[2K[%s%s] %4.1f s  %s requests/s  p50 %s  p99 %s",
               std::string(std::min(done, kBar), '=').c_str(),
               std::string(kBar - std::min(done, kBar), ' ').c_str(), slice.end_s,
               Grouped(std::llround(slice.requests_per_s)).c_str(),
               MicrosecondsText(slice.latency_us.p50).c_str(),
               MicrosecondsText(slice.latency_us.p99).c_str());
  std::fflush(stderr);
}

void Print(const LoadPlan& plan, const LoadReport& report, const std::string& tokens) {
  std::printf("%s  %s on %s, %s tokens a request, %d in flight%s\n",
              Paint(Colour::kBold, plan.block).c_str(), report.dtype.c_str(),
              report.backend.empty() ? "?" : report.backend.c_str(), tokens.c_str(),
              plan.concurrency,
              plan.rate > 0 ? absl::StrFormat(", %g requests/s asked for", plan.rate).c_str() : "");
  std::printf("throughput  %s requests/s, %s tokens/s (%s answers in %g s)\n",
              Paint(Colour::kBold, Grouped(std::llround(report.RequestsPerSecond()))).c_str(),
              Paint(Colour::kBold, Grouped(std::llround(report.TokensPerSecond()))).c_str(),
              Grouped(report.requests).c_str(), report.seconds);
  const Distribution latency = Describe(report.latencies_us);
  std::printf("latency     p50 %s  p90 %s  p99 %s  p99.9 %s  max %s\n",
              MicrosecondsText(latency.p50).c_str(), MicrosecondsText(latency.p90).c_str(),
              MicrosecondsText(latency.p99).c_str(), MicrosecondsText(latency.p999).c_str(),
              MicrosecondsText(latency.max).c_str());
  std::string phases;
  double inside = 0;
  for (const char* phase : kPhases) {
    const auto found = report.phases_us.find(phase);
    if (found == report.phases_us.end() || found->second.max == 0) continue;
    absl::StrAppend(&phases, phase, " ", MicrosecondsText(found->second.mean), "  ");
    inside += found->second.mean;
  }
  if (!phases.empty()) {
    std::printf("means       %stransport and client %s\n", phases.c_str(),
                MicrosecondsText(std::max(latency.mean - inside, 0.0)).c_str());
  }
  for (const auto& [reason, count] : report.errors) {
    std::printf("errors      %s %s\n", Paint(Colour::kRed, reason).c_str(), Grouped(count).c_str());
  }
  if (report.errors.empty()) std::printf("errors      %s\n", Paint(Colour::kGreen, "none").c_str());
}

absl::Status Bench(const Globals& globals, BenchOptions& options) {
  LoadPlan& plan = options.plan;
  plan.server = globals.server;
  plan.call = globals.Call();
  const auto progress = [&plan, shows = ShowsProgress() && !globals.json](const Slice& slice) {
    if (shows) ShowProgress(plan, slice);
  };
  const auto report = RunLoad(plan, progress);
  if (ShowsProgress() && !globals.json) std::fprintf(stderr, "\r\x1b[2K");
  if (!report.ok()) return report.status();
  if (globals.json) {
    PrintJson(Json(plan, *report));
  } else {
    Print(plan, *report, options.tokens);
  }
  if (!options.plot.empty()) {
    if (absl::Status status = WritePlot(options.plot, plan, *report); !status.ok()) return status;
    if (!globals.json) std::printf("plot        %s\n", options.plot.c_str());
  }
  if (report->requests > 0) return absl::OkStatus();
  return absl::UnavailableError("no request was answered well");
}

// A status as CLI11's usage error, so that it ends with exit code 2.
void Require(const char* option, const absl::Status& status) {
  if (!status.ok()) throw CLI::ValidationError(option, std::string(status.message()));
}

}  // namespace

void AddBench(CLI::App& app, const Globals& globals, Action* action) {
  CLI::App* command =
      app.add_subcommand("bench", "Put load on a block; report throughput, latency and errors");
  auto options = std::make_shared<BenchOptions>();
  LoadPlan& plan = options->plan;
  command->add_option("block", plan.block, "For example smollm2.layers.0.ffn_path")
      ->type_name("NAME")
      ->required();
  command->add_option("--tokens", options->tokens, "Tokens of a request, or a range: 0-300")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--concurrency", plan.concurrency, "Requests in flight, at most")
      ->type_name("N")
      ->check(CLI::Range(1, 100000).description(""))
      ->capture_default_str();
  command->add_option("--duration", plan.duration_s, "Seconds to measure")
      ->type_name("S")
      ->check(CLI::Validator(CLI::PositiveNumber).description(""))
      ->capture_default_str();
  command->add_option("--warmup", plan.warmup_s, "Seconds before that, not measured")
      ->type_name("S")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""))
      ->capture_default_str();
  command
      ->add_option("--rate", plan.rate,
                   "Requests per second, each sent when due; else as fast as answers come")
      ->type_name("R")
      ->check(CLI::Validator(CLI::PositiveNumber).description(""));
  command->add_flag("--residual", plan.residual, "Send the block's optional inputs too");
  command->add_option("--plot", options->plot, "Write charts to this .png, .html or .svg")
      ->type_name("FILE");
  command->footer(
      "With --rate, latency counts from when a request was due, not from when it was sent.\n"
      "Phases are the server's own times, of every eighth request.\n"
      "--timeout (before or after the command) bounds each request.");
  command->callback([&globals, action, options] {
    Require("--tokens", ParseTokens(options->tokens, &options->plan));
    if (!options->plot.empty()) Require("--plot", CheckPlotPath(options->plot));
    *action = [&globals, options] { return Bench(globals, *options); };
  });
}

}  // namespace fuseblock::cli
