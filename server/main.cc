// fuseblock-server: configuration -> devices -> engine -> listen -> load the models -> serve ->
// drain. Operators load further revisions, and drain, through the admin port. It listens before it
// loads, so that health can be asked (NOT_SERVING) and blocks of the first models answer while
// later ones load.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "build_info.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"
#include "kernels/base/tuning.h"
#include "kernels/list.h"
#include "server/command_line.h"
#include "server/config.h"
#include "server/engine/cpu_team.h"
#include "server/engine/devices.h"
#include "server/engine/engine.h"
#include "server/engine/handover.h"
#include "server/engine/placement.h"
#include "server/engine/shadow.h"
#include "server/model/loader.h"
#include "server/model/registry.h"
#include "server/observe/http.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/observe/status_page.h"
#include "server/poll_spin.h"
#include "server/reason.h"
#include "server/rpc/admin_server.h"
#include "server/rpc/probe.h"
#include "server/rpc/run_record.h"
#include "server/rpc/server.h"
#include "server/statusz.h"
#include "server/stop_signals.h"

namespace fuseblock {
namespace {

enum ExitCode { kExitOk = 0, kExitFailed = 1, kExitUsage = 2 };

// About twice what it takes to wake a lane's thread and to be woken by it. A gRPC thread that is
// kept for as long delays what other connections brought by no more than that.
constexpr absl::Duration kCallerRunsMax = absl::Microseconds(100);

FallbackPolicy FallbackFrom(const Config& config) {
  return config.fallback_policy == "cpu" ? FallbackPolicy::kCpu : FallbackPolicy::kRefuse;
}

// The part of a load that goes into knowing what its blocks cost, and of a block at most that.
constexpr absl::Duration kMeasureMax = absl::Seconds(1);
constexpr absl::Duration kMeasureBlockMax = absl::Milliseconds(20);

// From a table that has the three limits, where 0 is none.
template <typename T>
Budget BudgetFrom(const T& limits) {
  const auto limit = [](int64_t value) { return value == 0 ? Budget::kNoLimit : value; };
  return {limit(limits.max_queue_tokens), limit(limits.max_queue_bytes),
          limit(limits.max_queue_requests)};
}

EngineOptions EngineOptionsFrom(const Config& config, std::vector<Device> devices) {
  EngineOptions options;
  options.devices = std::move(devices);
  options.lanes_per_device = static_cast<int>(config.lanes_per_device);
  options.cpu_threads = static_cast<int>(config.cpu_threads);
  options.batch_tokens_max = config.max_batch_tokens;
  options.graphs_per_lane_max = config.max_graphs;
  options.device_bytes_max = config.max_device_bytes;
  options.host_bytes_max = config.max_host_bytes;
  options.queue_tokens_max = config.max_queue_tokens;
  options.queue_bytes_max = config.max_queue_bytes;
  options.queue_requests_max = config.max_queue_requests;
  options.request_tokens_max = config.max_request_tokens;
  for (const auto& [name, tenant] : config.tenants) {
    (name == kAnyTenant ? options.tenant_quota : options.tenant_quotas[name]) = BudgetFrom(tenant);
  }
  options.fallback = FallbackFrom(config);
  options.caller_runs_max = kCallerRunsMax;
  options.caller_lanes = UsableCores();
  options.watchdog = absl::Seconds(config.watchdog_seconds);
  return options;
}

RpcServer::Options RpcOptionsFrom(const Config& config) {
  RpcServer::Options options;
  options.address = config.server_address;
  options.blocks.limits = {config.max_request_tokens, config.max_request_bytes};
  options.blocks.stream_requests_max = static_cast<int>(config.max_stream_requests);
  return options;
}

ModelOptions ModelOptionsFrom(const std::string& name, const ModelSettings& model,
                              int64_t revision) {
  ModelOptions options;
  options.name = name;
  options.path = model.path;
  options.dtype = DTypeFromName(model.dtype);
  options.rounding = model.rounding == "hf" ? Rounding::kHf : Rounding::kFused;
  options.layers = model.layers;
  if (!model.parts.empty()) options.parts = absl::StrSplit(model.parts, ',');
  options.revision = revision;
  return options;
}

// What the CPU's kernels run on here: the detail of the first usable CPU implementation.
std::string CpuIsa() {
  for (const KernelEntry& kernel : Kernels()) {
    for (const ImplementationInfo& item : kernel.implementations()) {
      if (item.device == DeviceType::kCpu && item.unavailable.empty() && !item.detail.empty()) {
        return item.detail;
      }
    }
  }
  return "none";
}

// "0.1.0 (4a1f...)"
std::string VersionOfThis() { return absl::StrCat(FUSEBLOCK_VERSION, " (", FUSEBLOCK_COMMIT, ")"); }

BuildInfo BuildInfoOfThis() {
  BuildInfo info{FUSEBLOCK_VERSION, FUSEBLOCK_COMMIT, "none", CpuIsa()};
  int version = 0;
  if (CudaRuntime() != nullptr && CudaRuntime()->runtime_version(&version) == 0) {
    info.cuda = absl::StrCat(version / 1000, ".", version % 1000 / 10);
  }
  return info;
}

// The parts of a running server.
struct Parts {
  // Calls end before the engine; the engine, which tells health of its devices, before health.
  ~Parts() {
    admin.reset();
    http.reset();
    if (rpc != nullptr) rpc->Shutdown(absl::Now());
    engine.reset();
  }

  const absl::Time started = absl::Now();
  const BuildInfo build = BuildInfoOfThis();
  Metrics metrics;
  BlockRegistry registry;
  std::vector<Device> devices;
  std::unique_ptr<Shadow> shadow;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<RpcServer> rpc;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<AdminServer> admin;

  std::mutex loading;  // one load at a time
  std::mutex placed_mutex;
  std::shared_ptr<const PlacedUnits> placed;  // the newest load's; guarded by `placed_mutex`
  std::promise<DrainReport> drained;
  const std::shared_future<DrainReport> drain_report = drained.get_future().share();
};

// A model to load, as the revision that it is to become.
struct WantedModel {
  std::string name;
  ModelSettings settings;
  int64_t revision = 1;
};

// With the GPUs of each layer's blocks planned over all of these models: what does not fit is
// refused before anything is loaded.
absl::StatusOr<std::vector<ModelOptions>> PlanModels(const std::vector<WantedModel>& wanted,
                                                     const Config& config, Parts& parts) {
  std::vector<ModelOptions> models;
  models.reserve(wanted.size());
  for (const WantedModel& one : wanted) {
    models.push_back(ModelOptionsFrom(one.name, one.settings, one.revision));
  }
  const auto gpus = GpusNow(*parts.engine, config.max_graphs);
  if (!gpus.ok()) return gpus.status();
  if (gpus->empty()) return models;
  std::vector<PlacementUnit> units;
  for (size_t i = 0; i < models.size(); ++i) {
    const absl::StatusOr<std::vector<ModelUnit>> measured = MeasureModel(models[i]);
    if (!measured.ok()) {
      return absl::Status(measured.status().code(), absl::StrCat("models.", models[i].name, ": ",
                                                                 measured.status().message()));
    }
    const int replicas = static_cast<int>(wanted[i].settings.replicas);
    for (const ModelUnit& unit : *measured) {
      units.push_back(UnitOf(unit, replicas, config.max_batch_tokens, *gpus));
    }
  }
  FUSEBLOCK_ASSIGN_OR_RETURN(Placement placement, Place(units, *gpus));
  LogPlacement(units, placement);
  for (ModelOptions& model : models) {
    model.places = PlacesOf(model.name, units, placement, parts.devices);
    model.copies = placement.copies;
  }
  const auto placed =
      std::make_shared<const PlacedUnits>(PlacedUnits{std::move(units), std::move(placement)});
  std::lock_guard<std::mutex> lock(parts.placed_mutex);
  parts.placed = placed;
  return models;
}

absl::Status Stopped(const StopSignals& signals, const std::function<bool()>& cancelled) {
  if (signals.stopping()) {
    return MakeError(Reason::kDraining, "the server is stopping", absl::Seconds(1));
  }
  return cancelled() ? absl::CancelledError("the load was cancelled") : absl::OkStatus();
}

// Loads it beside what serves.
absl::Status LoadPlanned(const ModelOptions& model, const Budget& budget, Parts& parts,
                         const StopSignals& signals, const std::function<bool()>& cancelled) {
  FUSEBLOCK_RETURN_IF_ERROR(Stopped(signals, cancelled));
  const absl::Time begin = absl::Now();
  Log(LogLevel::kInfo, "loading", absl::StrCat("loading ", model.name),
      {{"model", model.name}, {"revision", model.revision}, {"path", model.path}});
  CpuTeam team;
  const auto prepare = [&](const ServedBlock& block, int blocks) {
    FUSEBLOCK_RETURN_IF_ERROR(Stopped(signals, cancelled));
    return parts.engine->Prepare(block, budget, std::min(kMeasureMax / blocks, kMeasureBlockMax));
  };
  FUSEBLOCK_RETURN_IF_ERROR(
      LoadModel(model, parts.devices, parts.registry, prepare, team.parallel_for()));
  Log(LogLevel::kInfo, "loaded", absl::StrCat("loaded ", model.name),
      {{"model", model.name},
       {"revision", model.revision},
       {"blocks", parts.registry.List(model.name + ".").size()},
       {"seconds", absl::ToDoubleSeconds(absl::Now() - begin)}});
  return absl::OkStatus();
}

// On an operator's behalf: that revision, or for 0 one more than the newest.
absl::StatusOr<int64_t> Load(WantedModel wanted, const Config& config, Parts& parts,
                             const StopSignals& signals, const std::function<bool()>& cancelled) {
  std::lock_guard<std::mutex> lock(parts.loading);
  FUSEBLOCK_RETURN_IF_ERROR(Stopped(signals, cancelled));
  if (wanted.revision == 0) wanted.revision = parts.registry.NewestRevision(wanted.name) + 1;
  FUSEBLOCK_ASSIGN_OR_RETURN(const std::vector<ModelOptions> models,
                             PlanModels({wanted}, config, parts));
  FUSEBLOCK_RETURN_IF_ERROR(
      LoadPlanned(models.front(), BudgetFrom(wanted.settings), parts, signals, cancelled));
  return wanted.revision;
}

// config must outlive what is made of it.
AdminService::Options AdminOptionsFrom(const Config& config, Parts& parts, StopSignals& signals) {
  AdminService::Options options;
  options.config = config;
  options.record = MakeRunRecord(parts.build, config, parts.devices);
  options.load = [&config, &parts, &signals](const std::string& name, const ModelSettings& model,
                                             int64_t revision,
                                             const std::function<bool()>& cancelled) {
    return Load({name, model, revision}, config, parts, signals, cancelled);
  };
  options.drain = [&parts, &signals] {
    Log(LogLevel::kInfo, "stopping", "a call to the admin port: draining");
    signals.RequestStop();
    return parts.drain_report.get();
  };
  return options;
}

absl::Status StartHttp(const Config& config, Parts& parts) {
  if (config.metrics_address.empty()) return absl::OkStatus();
  const auto serving = [&service = parts.rpc->health()] {
    return service.StateOf("") == grpc::health::v1::HealthCheckResponse::SERVING;
  };
  const auto ready = [serving]() -> absl::Status {
    return serving() ? absl::OkStatus() : absl::UnavailableError("not serving");
  };
  const auto statusz = [serving, &config, &parts] {
    const auto placed = [&parts] {
      std::lock_guard<std::mutex> lock(parts.placed_mutex);
      return parts.placed;
    }();
    return RenderStatusPage(
        CollectStatus({parts.build, parts.started, serving(), *parts.engine, parts.registry,
                       *parts.shadow, placed, config.max_host_bytes}));
  };
  auto http = HttpServer::Start(config.metrics_address, parts.metrics, ready, statusz);
  if (!http.ok()) return http.status();
  parts.http = *std::move(http);
  Log(LogLevel::kInfo, "listening", absl::StrCat("listening on ", parts.http->address()),
      {{"service", "metrics"}});
  return absl::OkStatus();
}

absl::Status StartAdmin(const Config& config, Parts& parts, StopSignals& signals) {
  if (config.admin_address.empty()) return absl::OkStatus();
  auto admin = AdminServer::Start(config.admin_address, AdminOptionsFrom(config, parts, signals),
                                  parts.registry, *parts.shadow, parts.metrics);
  if (!admin.ok()) return admin.status();
  parts.admin = *std::move(admin);
  Log(LogLevel::kInfo, "listening", absl::StrCat("listening on ", parts.admin->address()),
      {{"service", "admin"}});
  return absl::OkStatus();
}

absl::Status Start(const Config& config, Parts& parts, StopSignals& signals,
                   std::atomic<HealthService*>& health) {
  const BuildInfo& build = parts.build;
  parts.metrics.SetBuildInfo(build);
  Log(LogLevel::kInfo, "starting", absl::StrCat("fuseblock-server ", build.version),
      {{"version", build.version},
       {"commit", build.commit},
       {"cuda", build.cuda},
       {"isa", build.isa}});
  auto devices = ResolveDevices(config.devices, FallbackFrom(config));
  if (!devices.ok()) return devices.status();
  parts.devices = *devices;
  EngineOptions options = EngineOptionsFrom(config, *std::move(devices));
  options.on_device_change = [&health] {
    if (HealthService* service = health.load()) service->DevicesChanged();
  };
  auto engine = Engine::Create(options, parts.metrics);
  if (!engine.ok()) return engine.status();
  parts.engine = *std::move(engine);
  SpinBeforeSleeping(SpinMaxFor(UsableCores(), GpuCount(parts.devices)));
  Shadow::Options shadow_options;
  shadow_options.devices = parts.devices;
  parts.shadow = std::make_unique<Shadow>(shadow_options, parts.registry);

  auto rpc = RpcServer::Start(RpcOptionsFrom(config), *parts.engine, parts.registry, parts.metrics,
                              *parts.shadow);
  if (!rpc.ok()) return rpc.status();
  parts.rpc = *std::move(rpc);
  health = &parts.rpc->health();
  parts.registry.OnChange(
      [&service = parts.rpc->health()](const std::string& name) { service.BlockChanged(name); });
  Log(LogLevel::kInfo, "listening", absl::StrCat("listening on ", parts.rpc->address()),
      {{"service", "grpc"}});
  FUSEBLOCK_RETURN_IF_ERROR(StartHttp(config, parts));
  return StartAdmin(config, parts, signals);
}

absl::Status LoadModels(const Config& config, Parts& parts, const StopSignals& signals) {
  std::lock_guard<std::mutex> lock(parts.loading);
  std::vector<WantedModel> wanted;
  for (const auto& [name, model] : config.models) wanted.push_back({name, model});
  FUSEBLOCK_ASSIGN_OR_RETURN(const std::vector<ModelOptions> models,
                             PlanModels(wanted, config, parts));
  for (const ModelOptions& model : models) {
    const Budget budget = BudgetFrom(config.models.at(model.name));
    const absl::Status status = LoadPlanned(model, budget, parts, signals, [] { return false; });
    if (status.ok()) continue;
    return absl::Status(status.code(), absl::StrCat("models.", model.name, ": ", status.message()));
  }
  return absl::OkStatus();
}

// NOT_SERVING, time for load balancers to notice, then refuse what is new and finish what is in
// flight.
void Drain(const Config& config, Parts& parts) {
  const absl::Time begin = absl::Now();
  parts.rpc->health().SetPhase(HealthService::Phase::kDraining);
  absl::SleepFor(absl::Seconds(config.drain_notice_seconds));
  const absl::Time deadline = absl::Now() + absl::Seconds(config.drain_grace_seconds);
  const bool complete = parts.engine->Drain(deadline);
  // Answers may still be on their way to clients.
  parts.rpc->Shutdown(std::max(deadline, absl::Now() + absl::Seconds(1)));
  const DrainReport report = {complete, absl::Now() - begin};
  Log(LogLevel::kInfo, "drained", complete ? "drained" : "the time for the drain is over",
      {{"complete", complete}, {"seconds", absl::ToDoubleSeconds(report.took)}});
  parts.drained.set_value(report);
  // Whoever asked for the drain gets its answer.
  if (parts.admin != nullptr) parts.admin->Shutdown(absl::Now() + absl::Seconds(1));
}

int Serve(const Config& config) {
  SetUpLog(*LogLevelFromName(config.log_level), *LogFormatFromName(config.log_format));
  StopSignals signals;
  std::atomic<HealthService*> health = nullptr;
  Parts parts;
  absl::Status status = UseTuningFile(config.tuning_file, VersionOfThis());
  if (status.ok()) status = Start(config, parts, signals, health);
  if (!status.ok()) {
    Log(LogLevel::kError, "start_failed", std::string(status.message()));
    return kExitFailed;
  }
  std::thread loader([&] {
    status = LoadModels(config, parts, signals);
    if (status.ok()) {
      parts.rpc->health().SetPhase(HealthService::Phase::kServing);
      parts.engine->LogMemory();
      Log(LogLevel::kInfo, "ready", "every model is loaded");
    } else if (!signals.stopping()) {
      Log(LogLevel::kError, "load_failed", std::string(status.message()));
      signals.RequestStop();
    } else {
      status = absl::OkStatus();  // the stop ended the load
    }
  });
  signals.Wait();
  Drain(config, parts);
  if (parts.engine->HasStuckLane()) {
    // Nothing that lies on its device can be freed, and the driver may wait for it for ever.
    Log(LogLevel::kError, "left_a_lane_behind", "a lane hangs; the process ends without it");
    std::fflush(nullptr);
    std::_Exit(kExitOk);
  }
  loader.join();
  return status.ok() ? kExitOk : kExitFailed;
}

int Main(int argc, char** argv) {
  const auto command = ParseCommandLine(argc, argv, VersionOfThis());
  if (!command.ok()) {
    std::fprintf(stderr, "fuseblock-server: %s\n", std::string(command.status().message()).c_str());
    return kExitUsage;
  }
  std::fputs(command->text.c_str(), stdout);
  if (command->action == CommandLine::Action::kServe) return Serve(command->config);
  if (command->action == CommandLine::Action::kHealthcheck) {
    const absl::Status status = ProbeHealth(command->config.server_address, absl::Seconds(5));
    if (!status.ok()) {
      std::fprintf(stderr, "fuseblock-server: %s\n", std::string(status.message()).c_str());
      return kExitFailed;
    }
  }
  return kExitOk;
}

}  // namespace
}  // namespace fuseblock

int main(int argc, char** argv) {
  fuseblock::TuneProcess();
  return fuseblock::Main(argc, argv);
}
