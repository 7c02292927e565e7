// The server's command line: flags on top of the configuration.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/config.h"

namespace fuseblock {

// What `fuseblock-server` was asked to do.
struct CommandLine {
  enum class Action {
    kServe,
    kCheckConfig,  // the configuration was valid
    kPrintConfig,
    kHealthcheck,
    kExit,  // --help, --version: `text` says it all
  };
  Action action = Action::kServe;
  Config config;
  std::string text;  // for standard output
};

// INVALID_ARGUMENT with a message for people, naming key, expected and given.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv,
                                             std::string_view version);

}  // namespace fuseblock
