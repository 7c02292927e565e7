// `fuseblock kernels`: every kernel, its implementations in order of preference, and why each is or
// is not usable on this machine. Needs no server.
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/output.h"
#include "kernels/list.h"

namespace fuseblock::cli {
namespace {

const char* DeviceText(DeviceType type) { return type == DeviceType::kCpu ? "cpu" : "cuda"; }

absl::Status ListKernels(const Globals& globals) {
  std::vector<std::vector<Cell>> rows;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const KernelEntry& kernel : Kernels()) {
    bool first = true;
    nlohmann::ordered_json implementations = nlohmann::ordered_json::array();
    for (const ImplementationInfo& info : kernel.implementations()) {
      const bool usable = info.unavailable.empty();
      rows.push_back({{first ? kernel.name : "", Colour::kBold},
                      {DeviceText(info.device)},
                      {info.name},
                      {usable ? "yes" : "no", usable ? Colour::kGreen : Colour::kDim},
                      {usable ? info.detail : info.unavailable, Colour::kDim}});
      first = false;
      implementations.push_back({{"name", info.name},
                                 {"device", DeviceText(info.device)},
                                 {"usable", usable},
                                 {"unavailable", info.unavailable},
                                 {"detail", info.detail}});
    }
    json.push_back({{"kernel", kernel.name}, {"implementations", implementations}});
  }
  if (globals.json) {
    PrintJson(json);
  } else {
    PrintTable({"KERNEL", "DEVICE", "IMPLEMENTATION", "USABLE", "RUNS ON, OR WHY NOT"}, rows);
  }
  return absl::OkStatus();
}

}  // namespace

void AddKernels(CLI::App& app, const Globals& globals, Action* action) {
  CLI::App* command = app.add_subcommand(
      "kernels", "List every kernel's implementations on this machine; asks no server");
  command->footer(
      "In order of preference: on each device the first usable implementation that takes a call's\n"
      "dtype and shape runs it; the reference takes everything.");
  command->callback([&globals, action] { *action = [&globals] { return ListKernels(globals); }; });
}

}  // namespace fuseblock::cli
