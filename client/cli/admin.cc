// `fuseblock admin`: loads, switches and unloads revisions on a running server, shows how it is set
// up, and drains it.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/output.h"
#include "client/cpp/encoded.h"
#include "fuseblock/v1/admin_service.grpc.pb.h"

namespace fuseblock::cli {
namespace {

struct Options {
  std::string server = "127.0.0.1:8003";
  v1::LoadModelRequest load;
  v1::UnloadModelRequest unload;
  v1::SetRevisionRequest set_revision;
  v1::SetShadowRequest shadow;
  double percent = 0;
};

// Calls the method and gives its response.
template <typename Request, typename Response>
absl::StatusOr<Response> Call(const Globals& globals, const Options& options,
                              grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*,
                                                                             const Request&,
                                                                             Response*),
                              const Request& request) {
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel(options.server, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  client::ApplyOptions(globals.Call(), context);
  Response response;
  const grpc::Status status = ((*stub).*method)(&context, request, &response);
  if (!status.ok()) return client::ErrorFrom(status);
  return response;
}

std::string Blocks(int64_t count) { return absl::StrCat(count, count == 1 ? " block" : " blocks"); }

std::string Seconds(double seconds) { return absl::StrFormat("%.2f s", seconds); }

absl::Status Load(const Globals& globals, const Options& options) {
  const auto loaded = Call(globals, options, &v1::AdminService::Stub::LoadModel, options.load);
  if (!loaded.ok()) return loaded.status();
  if (globals.json) {
    PrintJson({{"model", options.load.model()},
               {"revision", loaded->revision()},
               {"blocks", loaded->blocks()},
               {"weight_bytes", loaded->weight_bytes()},
               {"seconds", loaded->seconds()}});
  } else {
    absl::PrintF("loaded %s revision %s: %s, %s, %s\n", options.load.model(), loaded->revision(),
                 Blocks(loaded->blocks()), BytesText(loaded->weight_bytes()),
                 Seconds(loaded->seconds()));
  }
  return absl::OkStatus();
}

absl::Status Unload(const Globals& globals, const Options& options) {
  const auto done = Call(globals, options, &v1::AdminService::Stub::UnloadModel, options.unload);
  if (!done.ok()) return done.status();
  if (globals.json) {
    PrintJson({{"name", options.unload.name()},
               {"revision", options.unload.revision()},
               {"blocks", done->blocks()},
               {"weight_bytes", done->weight_bytes()},
               {"seconds", done->seconds()}});
  } else {
    absl::PrintF("unloaded %s: %s, %s of weights free, %s\n", options.unload.name(),
                 Blocks(done->blocks()), BytesText(done->weight_bytes()), Seconds(done->seconds()));
  }
  return absl::OkStatus();
}

absl::Status SetRevision(const Globals& globals, const Options& options) {
  const v1::SetRevisionRequest& request = options.set_revision;
  const auto done = Call(globals, options, &v1::AdminService::Stub::SetRevision, request);
  if (!done.ok()) return done.status();
  if (globals.json) {
    PrintJson(
        {{"name", request.name()}, {"revision", request.revision()}, {"blocks", done->blocks()}});
  } else {
    const std::string revision =
        request.revision().empty() ? "the newest revision" : "revision " + request.revision();
    absl::PrintF("%s: %s of %s\n", request.name(), revision, Blocks(done->blocks()));
  }
  return absl::OkStatus();
}

absl::Status SetShadow(const Globals& globals, const Options& options) {
  v1::SetShadowRequest request = options.shadow;
  request.set_share(options.percent / 100);
  const auto done = Call(globals, options, &v1::AdminService::Stub::SetShadow, request);
  if (!done.ok()) return done.status();
  if (globals.json) {
    PrintJson({{"name", request.name()},
               {"share", request.share()},
               {"revision", request.revision()},
               {"backend", request.backend()}});
  } else if (options.percent == 0) {
    absl::PrintF("%s: no shadow runs\n", request.name());
  } else {
    absl::PrintF("%s: %g %% of the requests run again; fuseblock_shadow_total counts them\n",
                 request.name(), options.percent);
  }
  return absl::OkStatus();
}

absl::Status ShowConfig(const Globals& globals, const Options& options) {
  const auto config = Call(globals, options, &v1::AdminService::Stub::GetConfig, {});
  if (!config.ok()) return config.status();
  if (globals.json) {
    PrintJson({{"toml", config->toml()}});
  } else {
    absl::PrintF("%s", config->toml());
  }
  return absl::OkStatus();
}

nlohmann::ordered_json RecordJson(const v1::RunRecord& record) {
  const v1::Hardware& hardware = record.hardware();
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const v1::HardwareDevice& device : hardware.devices()) {
    devices.push_back({{"name", device.name()},
                       {"model", device.model()},
                       {"memory_bytes", device.memory_bytes()}});
  }
  // Maps in protobuf have no order of their own.
  const std::map<std::string, std::string> libraries(record.libraries().begin(),
                                                     record.libraries().end());
  const std::map<std::string, uint64_t> seeds(record.seeds().begin(), record.seeds().end());
  return {{"version", record.version()},
          {"commit", record.commit()},
          {"build", record.build()},
          {"started",
           absl::FormatTime(absl::RFC3339_sec, absl::FromUnixSeconds(record.start_time().seconds()),
                            absl::UTCTimeZone())},
          {"hardware",
           {{"cpu", hardware.cpu()},
            {"cores", hardware.cores()},
            {"isa", hardware.isa()},
            {"memory_bytes", hardware.memory_bytes()},
            {"kernel", hardware.kernel()},
            {"devices", devices}}},
          {"libraries", libraries},
          {"seeds", seeds},
          {"config_toml", record.config_toml()}};
}

// One line for each value, "hardware.cpu" for one inside another.
void PrintFlat(const std::string& prefix, const nlohmann::ordered_json& value) {
  for (const auto& [key, inner] : value.items()) {
    const std::string name = prefix.empty() ? key : absl::StrCat(prefix, ".", key);
    if (inner.is_structured()) {
      PrintFlat(name, inner);
      continue;
    }
    std::string padded = name;
    padded.resize(std::max<size_t>(padded.size() + 1, 32), ' ');
    absl::PrintF("%s%s\n", Paint(Colour::kDim, padded),
                 inner.is_string() ? inner.get<std::string>() : inner.dump());
  }
}

absl::Status ShowRunRecord(const Globals& globals, const Options& options) {
  const auto found = Call(globals, options, &v1::AdminService::Stub::GetRunRecord, {});
  if (!found.ok()) return found.status();
  nlohmann::ordered_json record = RecordJson(found->record());
  if (globals.json) {
    PrintJson(record);
    return absl::OkStatus();
  }
  const std::string config = record["config_toml"];
  record.erase("config_toml");
  PrintFlat("", record);
  absl::PrintF("\n%s", config);
  return absl::OkStatus();
}

absl::Status Drain(const Globals& globals, const Options& options) {
  const auto done = Call(globals, options, &v1::AdminService::Stub::Drain, {});
  if (!done.ok()) return done.status();
  if (globals.json) {
    PrintJson({{"complete", done->complete()}, {"seconds", done->seconds()}});
  } else {
    absl::PrintF("drained in %s\n", Seconds(done->seconds()));
  }
  if (done->complete()) return absl::OkStatus();
  return absl::DeadlineExceededError("the server's time for the drain ended before all was done");
}

using Run = absl::Status (*)(const Globals&, const Options&);

// Adds one command below `admin`.
CLI::App* Add(CLI::App* admin, const char* name, const char* help, Run run, const Globals& globals,
              const std::shared_ptr<Options>& options, Action* action) {
  CLI::App* command = admin->add_subcommand(name, help);
  command->callback([&globals, options, action, run] {
    *action = [&globals, options, run] { return run(globals, *options); };
  });
  return command;
}

constexpr char kFooter[] =
    "Examples:\n"
    "  fuseblock admin load smollm2 --path /models/smollm2-next\n"
    "  fuseblock admin set-revision smollm2 1\n"
    "  fuseblock admin shadow smollm2 5 --revision 2\n"
    "  fuseblock admin unload smollm2 --revision 2\n"
    "\n"
    "Exit code 0: success; 1: the command failed; 2: the command line is wrong.";

}  // namespace

void AddAdmin(CLI::App& app, const Globals& globals, Action* action) {
  CLI::App* admin = app.add_subcommand("admin", "Operate a server, through its admin port");
  admin->require_subcommand(1);
  admin->footer(kFooter);
  auto options = std::make_shared<Options>();
  admin->add_option("--admin", options->server, "The admin port; --server is not used")
      ->type_name("TARGET")
      ->envname("FUSEBLOCK_ADMIN")
      ->capture_default_str();
  const auto add = [&](const char* name, const char* help, Run run) {
    CLI::App* command = Add(admin, name, help, run, globals, options, action);
    command->fallthrough();
    return command;
  };
  const char* named = "A model's name, or one block's";

  CLI::App* load = add("load", "Load a revision beside what serves; it answers from then on", Load);
  v1::LoadModelRequest& request = options->load;
  load->add_option("MODEL", *request.mutable_model(), "The model's name")->required();
  load->add_option("--path", *request.mutable_path(),
                   "The checkpoint's folder on the server's machine");
  load->add_option("--revision", *request.mutable_revision(),
                   "Its number; by default one more than the newest");
  load->add_option("--dtype", *request.mutable_dtype(), "FP32, FP16 or BF16");
  load->add_option("--rounding", *request.mutable_rounding(), "fused or hf");
  load->add_option("--layers", *request.mutable_layers(), "\"0-3,29\"");
  load->add_option("--parts", *request.mutable_parts(), "\"mlp,ffn_norm\"");
  load->footer("What is not given is as the server's configuration has it for that model.");

  CLI::App* unload =
      add("unload", "Take a revision away when its last request is answered", Unload);
  unload->add_option("NAME", *options->unload.mutable_name(), named)->required();
  unload->add_option("--revision", *options->unload.mutable_revision(), "By default all of them");

  CLI::App* set =
      add("set-revision", "Say which revision answers when none is asked for", SetRevision);
  set->add_option("NAME", *options->set_revision.mutable_name(), named)->required();
  set->add_option("REVISION", *options->set_revision.mutable_revision(),
                  "By default the newest, now and later");

  CLI::App* shadow = add(
      "shadow", "Run a share of the requests again elsewhere and compare the outputs", SetShadow);
  shadow->add_option("NAME", *options->shadow.mutable_name(), named)->required();
  shadow->add_option("PERCENT", options->percent, "Of the requests; 0 ends it")->required();
  shadow->add_option("--revision", *options->shadow.mutable_revision(), "To compare with");
  shadow->add_option("--backend", *options->shadow.mutable_backend(), "To compare on: cpu, cuda:0");

  add("config", "Show the configuration", ShowConfig);
  add("run-record", "Show version, build, machine, libraries and configuration", ShowRunRecord);
  add("drain", "Refuse what is new, finish what is in flight, end the server", Drain);
}

}  // namespace fuseblock::cli
