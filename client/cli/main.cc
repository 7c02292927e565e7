// fuseblock: the command line client of a Fuseblock server.
// Exit codes: 0 success, 1 the command failed, 2 the command line is wrong.
#include <exception>

#include "build_info.h"
#include "client/cli/command.h"
#include "client/cli/output.h"

namespace {

constexpr char kFooter[] =
    "Examples:\n"
    "  fuseblock blocks\n"
    "  fuseblock describe smollm2.layers.0.mlp\n"
    "  fuseblock run smollm2.layers.0.mlp --input x.npy --output y.npy\n"
    "  fuseblock bench smollm2.layers.0.ffn_path --tokens 16 --concurrency 8 --duration 10\n"
    "\n"
    "Exit code 0: success; 1: the command failed; 2: the command line is wrong.";

int Main(int argc, char** argv) {
  CLI::App app("Client of a Fuseblock server: runs, lists and measures transformer blocks.",
               "fuseblock");
  fuseblock::cli::Globals globals;
  fuseblock::cli::Action action;
  app.add_option("--server", globals.server, "HOST:PORT, unix:PATH or any gRPC target")
      ->type_name("TARGET")
      ->envname("FUSEBLOCK_SERVER")
      ->capture_default_str();
  app.add_option("--timeout", globals.timeout_s, "Seconds for each call; 0: no limit")
      ->type_name("S")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""));
  app.add_flag("--json", globals.json, "Print JSON for machines");
  app.set_version_flag("--version", "fuseblock " FUSEBLOCK_VERSION " (" FUSEBLOCK_COMMIT ")");
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(kFooter);
  for (auto* add : {fuseblock::cli::AddBlocks, fuseblock::cli::AddDescribe, fuseblock::cli::AddRun,
                    fuseblock::cli::AddHealth, fuseblock::cli::AddBench, fuseblock::cli::AddKernels,
                    fuseblock::cli::AddAdmin}) {
    add(app, globals, &action);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = action();
  if (status.ok()) return 0;
  fuseblock::cli::PrintError(status, globals.json);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuseblock: %s\n", error.what());
    return 1;
  }
}
