// A command of the program `fuseblock`: it adds its name, options and help to the parser, and runs.
#pragma once

#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "client/cpp/client.h"

namespace fuseblock::cli {

// The options that stand before the command.
struct Globals {
  std::string server = "127.0.0.1:8001";
  bool json = false;
  double timeout_s = 0;  // 0: none

  client::CallOptions Call() const {
    client::CallOptions options;
    if (timeout_s > 0) options.timeout = absl::Seconds(timeout_s);
    return options;
  }
};

// What a command came to; it has printed its own output. OK: exit code 0.
using Action = std::function<absl::Status()>;

// Each adds one command. When the command line names it, *action becomes what is to be run; globals
// must outlive that.
void AddBlocks(CLI::App& app, const Globals& globals, Action* action);
void AddDescribe(CLI::App& app, const Globals& globals, Action* action);
void AddHealth(CLI::App& app, const Globals& globals, Action* action);
void AddRun(CLI::App& app, const Globals& globals, Action* action);
void AddBench(CLI::App& app, const Globals& globals, Action* action);
void AddKernels(CLI::App& app, const Globals& globals, Action* action);
void AddAdmin(CLI::App& app, const Globals& globals, Action* action);

}  // namespace fuseblock::cli
