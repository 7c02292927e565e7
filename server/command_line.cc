#include "server/command_line.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fuseblock {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status ReadFileInto(const std::string& path, Config& config) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  return ApplyToml(text, path, config);
}

struct Flags {
  std::string config_file;
  std::vector<std::string> settings, models;
  bool check = false, print = false, healthcheck = false;
};

// File first, then flags in their order: what stands later wins.
absl::Status ApplyFlags(const Flags& flags, Config& config) {
  if (!flags.config_file.empty()) {
    if (absl::Status status = ReadFileInto(flags.config_file, config); !status.ok()) return status;
  }
  for (const std::string& setting : flags.settings) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(setting, absl::MaxSplits('=', 1));
    if (setting.find('=') == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set: expected section.key=value, got \"", setting, "\""));
    }
    absl::Status status = ApplySetting(parts.first, parts.second, config);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("--set: ", status.message()));
  }
  for (const std::string& model : flags.models) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(model, absl::MaxSplits('=', 1));
    if (!IsModelName(parts.first) || parts.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--model: expected NAME=DIR with a name of letters, digits, '_' and '-'; got \"", model,
          "\""));
    }
    config.models[parts.first].path = parts.second;
  }
  return CheckConfig(config);
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv,
                                             std::string_view version) {
  CommandLine command;
  Flags flags;
  CLI::App app("Serves fused transformer blocks over gRPC.", "fuseblock-server");
  app.add_option("--config", flags.config_file, "The configuration, a TOML file")
      ->type_name("FILE");
  app.add_option("--set", flags.settings, "One key of the configuration, any number of times")
      ->type_name("SECTION.KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->delimiter('\0');
  app.add_option("--model", flags.models, "Serve this checkpoint, any number of times")
      ->type_name("NAME=DIR")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--check-config", flags.check, "Check the configuration and exit");
  app.add_flag("--print-config", flags.print, "Print it with every default filled in and exit");
  app.add_flag("--healthcheck", flags.healthcheck,
               "Ask the server at server.address whether it serves; exit 0 if so");
  app.set_version_flag("--version", absl::StrCat("fuseblock-server ", View(version)));
  app.footer(DescribeKeys());
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return CommandLine{CommandLine::Action::kExit, {}, app.help()};
  } catch (const CLI::CallForVersion&) {
    return CommandLine{CommandLine::Action::kExit, {}, app.version() + "\n"};
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), "; see --help"));
  }
  if (absl::Status status = ApplyFlags(flags, command.config); !status.ok()) return status;
  if (flags.check + flags.print + flags.healthcheck > 1) {
    return absl::InvalidArgumentError(
        "expected one of --check-config, --print-config, --healthcheck");
  }
  if (flags.check) {
    command.action = CommandLine::Action::kCheckConfig;
    command.text = "the configuration is valid\n";
  } else if (flags.print) {
    command.action = CommandLine::Action::kPrintConfig;
    command.text = PrintConfig(command.config);
  } else if (flags.healthcheck) {
    command.action = CommandLine::Action::kHealthcheck;
  }
  return command;
}

}  // namespace fuseblock
