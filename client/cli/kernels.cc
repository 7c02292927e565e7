// `fuseblock kernels`: every kernel, its implementations in order of preference, and why each is or
// is not usable on this machine. Needs no server.
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/output.h"
#include "kernels/list.h"

namespace fuseblock::cli {
namespace {

// Which implementation a device type's calls reach: the first of its list that is usable.
enum class Use { kFirst, kFallback, kUnavailable };

const char* Text(Use use) {
  switch (use) {
    case Use::kFirst:
      return "used";
    case Use::kFallback:
      return "fallback";
    case Use::kUnavailable:
      return "no";
  }
  return "?";
}

const char* DeviceText(DeviceType type) { return type == DeviceType::kCpu ? "cpu" : "cuda"; }

absl::Status ListKernels(const Globals& globals) {
  std::vector<std::vector<Cell>> rows;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const KernelEntry& kernel : Kernels()) {
    bool first = true;
    bool taken[2] = {false, false};
    nlohmann::ordered_json implementations = nlohmann::ordered_json::array();
    for (const ImplementationInfo& info : kernel.implementations()) {
      bool& device_taken = taken[info.device == DeviceType::kCpu ? 0 : 1];
      const Use use = !info.unavailable.empty() ? Use::kUnavailable
                      : device_taken            ? Use::kFallback
                                                : Use::kFirst;
      device_taken |= info.unavailable.empty();
      const Colour colour = use == Use::kFirst ? Colour::kGreen : Colour::kDim;
      rows.push_back({{first ? kernel.name : "", Colour::kBold},
                      {DeviceText(info.device)},
                      {info.name},
                      {Text(use), colour},
                      {use == Use::kUnavailable ? info.unavailable : info.detail, colour}});
      first = false;
      implementations.push_back({{"name", info.name},
                                 {"device", DeviceText(info.device)},
                                 {"use", Text(use)},
                                 {"unavailable", info.unavailable},
                                 {"detail", info.detail}});
    }
    json.push_back({{"kernel", kernel.name}, {"implementations", implementations}});
  }
  if (globals.json) {
    PrintJson(json);
  } else {
    PrintTable({"KERNEL", "DEVICE", "IMPLEMENTATION", "HERE", "RUNS ON, OR WHY NOT"}, rows);
  }
  return absl::OkStatus();
}

}  // namespace

void AddKernels(CLI::App& app, const Globals& globals, Action* action) {
  CLI::App* command = app.add_subcommand(
      "kernels", "List every kernel's implementations on this machine; asks no server");
  command->footer(
      "Of each device's implementations the first usable one is used; a fallback takes what it\n"
      "can't take.");
  command->callback([&globals, action] { *action = [&globals] { return ListKernels(globals); }; });
}

}  // namespace fuseblock::cli
