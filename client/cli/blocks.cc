// `fuseblock blocks`, `describe` and `health`: what the server serves and whether it can answer.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/dtype.h"
#include "client/cli/output.h"

namespace fuseblock::cli {
namespace {

std::string StateText(const v1::BlockInfo& block) {
  switch (block.state()) {
    case v1::BLOCK_STATE_LOADING:
      return "loading";
    case v1::BLOCK_STATE_READY:
      return "ready";
    case v1::BLOCK_STATE_FAILED:
      return "failed";
    case v1::BLOCK_STATE_UNLOADING:
      return "unloading";
    default:
      return "unknown";
  }
}

Colour StateColour(const v1::BlockInfo& block) {
  if (block.state() == v1::BLOCK_STATE_READY) return Colour::kGreen;
  return block.state() == v1::BLOCK_STATE_FAILED ? Colour::kRed : Colour::kYellow;
}

std::string Types(const v1::TensorSpec& spec) {
  return absl::StrJoin(spec.data_types(), "|", [](std::string* out, int type) {
    *out += Traits(static_cast<v1::DataType>(type)).name;
  });
}

std::string TensorText(const v1::TensorSpec& spec) {
  const std::string shape = absl::StrJoin(spec.shape(), ", ", [](std::string* out, int64_t extent) {
    *out += extent < 0 ? "*" : absl::StrCat(extent);
  });
  return absl::StrCat(spec.name(), " [", shape, "] ", Types(spec),
                      spec.optional() ? ", optional" : "");
}

nlohmann::ordered_json TensorsJson(
    const google::protobuf::RepeatedPtrField<v1::TensorSpec>& specs) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const v1::TensorSpec& spec : specs) {
    std::vector<std::string> types;
    for (int type : spec.data_types()) {
      types.push_back(Traits(static_cast<v1::DataType>(type)).name);
    }
    out.push_back({{"name", spec.name()},
                   {"dtypes", types},
                   {"shape", std::vector<int64_t>(spec.shape().begin(), spec.shape().end())},
                   {"optional", spec.optional()}});
  }
  return out;
}

template <typename Strings>
std::vector<std::string> List(const Strings& strings) {
  return {strings.begin(), strings.end()};
}

nlohmann::ordered_json BlockJson(const v1::BlockInfo& block) {
  return {{"name", block.name()},
          {"kind", block.kind()},
          {"state", StateText(block)},
          {"state_reason", block.state_reason()},
          {"revisions", List(block.revisions())},
          {"current_revision", block.current_revision()},
          {"inputs", TensorsJson(block.inputs())},
          {"outputs", TensorsJson(block.outputs())},
          {"formula", block.formula()},
          {"rounding", block.rounding()},
          {"content_hash", block.content_hash()},
          {"hidden_size", block.hidden_size()},
          {"intermediate_size", block.intermediate_size()},
          {"backends", List(block.backends())},
          {"weight_bytes", block.weight_bytes()},
          {"max_request_tokens", block.max_request_tokens()},
          {"family", block.family()}};
}

// Blocks that differ only in the layer, as one row of the list.
struct Group {
  v1::BlockInfo block;          // the first one
  std::vector<int64_t> layers;  // empty: the name has no layer
  std::string before, after;    // the name around the layer's number
  int64_t weight_bytes = 0;     // of all
};

// "smollm2.layers.12.mlp" -> 12, with the name around it.
std::optional<int64_t> LayerOf(const std::string& name, std::string* before, std::string* after) {
  constexpr absl::string_view kMarker = ".layers.";
  const size_t at = name.find(kMarker.data());
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + kMarker.size();
  const size_t end = name.find('.', begin);
  int64_t layer = 0;
  if (!absl::SimpleAtoi(name.substr(begin, end - begin), &layer)) return std::nullopt;
  *before = name.substr(0, begin);
  *after = end == std::string::npos ? "" : name.substr(end);
  return layer;
}

// {0, 1, 2, 5} -> "0-2,5"
std::string Ranges(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::vector<std::string> parts;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    parts.push_back(last == i ? absl::StrCat(numbers[i])
                              : absl::StrCat(numbers[i], "-", numbers[last]));
    i = last + 1;
  }
  return absl::StrJoin(parts, ",");
}

std::vector<Group> Grouping(const std::vector<v1::BlockInfo>& blocks, bool all) {
  std::vector<Group> groups;
  std::map<std::string, size_t> by_key;
  for (const v1::BlockInfo& block : blocks) {
    Group group;
    group.block = block;
    const auto layer = all ? std::nullopt : LayerOf(block.name(), &group.before, &group.after);
    const std::string key =
        layer ? absl::StrCat(group.before, "*", group.after, " ", StateText(block), " ",
                             absl::StrJoin(block.backends(), ","))
              : block.name();
    const auto [at, fresh] = by_key.try_emplace(key, groups.size());
    if (fresh) groups.push_back(std::move(group));
    Group& into = groups[at->second];
    if (layer) into.layers.push_back(*layer);
    into.weight_bytes += block.weight_bytes();
  }
  return groups;
}

absl::Status ListBlocks(const Globals& globals, const std::string& prefix, bool all) {
  const auto blocks = client::Client(globals.server).ListBlocks(prefix, globals.Call());
  if (!blocks.ok()) return blocks.status();
  if (globals.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const v1::BlockInfo& block : *blocks) json.push_back(BlockJson(block));
    PrintJson(json);
    return absl::OkStatus();
  }
  std::vector<std::vector<Cell>> rows;
  for (const Group& group : Grouping(*blocks, all)) {
    const v1::BlockInfo& block = group.block;
    const std::string name =
        group.layers.size() < 2
            ? block.name()
            : absl::StrCat(group.before, "{", Ranges(group.layers), "}", group.after);
    rows.push_back({{name},
                    {block.kind()},
                    {block.outputs().empty() ? "?" : Types(block.outputs(0))},
                    {block.rounding()},
                    {StateText(block), StateColour(block)},
                    {absl::StrJoin(block.backends(), ",")},
                    {absl::StrCat(block.hidden_size())},
                    {block.intermediate_size() > 0 ? absl::StrCat(block.intermediate_size()) : "-"},
                    {BytesText(group.weight_bytes)}});
  }
  if (rows.empty()) {
    return absl::NotFoundError(prefix.empty()
                                   ? "the server serves no blocks"
                                   : absl::StrCat("no block's name starts with ", prefix));
  }
  PrintTable(
      {"BLOCK", "KIND", "DTYPE", "ROUNDING", "STATE", "BACKENDS", "HIDDEN", "INNER", "WEIGHTS"},
      rows);
  return absl::OkStatus();
}

absl::Status Describe(const Globals& globals, const std::string& name,
                      const std::string& revision) {
  const auto found = client::Client(globals.server).GetBlock(name, revision, globals.Call());
  if (!found.ok()) return found.status();
  const v1::BlockInfo& block = *found;
  if (globals.json) {
    PrintJson(BlockJson(block));
    return absl::OkStatus();
  }
  const auto line = [](std::string_view key, std::string_view value) {
    std::string padded(key);
    padded.resize(14, ' ');
    std::printf("%s%s\n", Paint(Colour::kDim, padded).c_str(), std::string(value).c_str());
  };
  std::printf("%s\n", Paint(Colour::kBold, block.name()).c_str());
  line("kind", absl::StrCat(block.kind(), ", family ", block.family()));
  line("formula", block.formula());
  line("rounding", block.rounding());
  for (const auto& spec : block.inputs()) line("input", TensorText(spec));
  for (const auto& spec : block.outputs()) line("output", TensorText(spec));
  line("state", Paint(StateColour(block), StateText(block)) +
                    (block.state_reason().empty() ? "" : ": " + block.state_reason()));
  line("revisions", absl::StrCat(absl::StrJoin(block.revisions(), ", "),
                                 " (answers: ", block.current_revision(), ")"));
  line("backends", absl::StrJoin(block.backends(), ", "));
  line("weights", BytesText(block.weight_bytes()));
  line("request max", absl::StrCat(Grouped(block.max_request_tokens()), " tokens"));
  line("content hash", block.content_hash());
  return absl::OkStatus();
}

absl::Status Health(const Globals& globals, const std::string& block) {
  const auto state = client::Client(globals.server).Health(block, globals.Call());
  if (!state.ok()) return state.status();
  const bool serving = *state == client::HealthState::kServing;
  const char* text = serving                                      ? "SERVING"
                     : *state == client::HealthState::kNotServing ? "NOT_SERVING"
                                                                  : "UNKNOWN";
  if (globals.json) {
    PrintJson({{"service", block}, {"status", text}});
  } else {
    std::printf("%s\n", Paint(serving ? Colour::kGreen : Colour::kRed, text).c_str());
  }
  if (serving) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(block.empty() ? "the server" : block, " does not serve"));
}

}  // namespace

void AddBlocks(CLI::App& app, const Globals& globals, Action* action) {
  CLI::App* command = app.add_subcommand("blocks", "List the blocks that the server holds");
  auto prefix = std::make_shared<std::string>();
  auto all = std::make_shared<bool>(false);
  command->add_option("prefix", *prefix, "Only blocks whose name starts with this")
      ->type_name("NAME");
  command->add_flag("--all", *all, "One line for every block, instead of one for all its layers");
  command->callback([&globals, action, prefix, all] {
    *action = [&globals, prefix, all] { return ListBlocks(globals, *prefix, *all); };
  });
}

void AddDescribe(CLI::App& app, const Globals& globals, Action* action) {
  CLI::App* command =
      app.add_subcommand("describe", "Print a block's tensors, formula, revisions and state");
  auto name = std::make_shared<std::string>();
  auto revision = std::make_shared<std::string>();
  command->add_option("block", *name, "For example smollm2.layers.0.mlp")
      ->type_name("NAME")
      ->required();
  command->add_option("--revision", *revision, "By default the one that answers")->type_name("N");
  command->callback([&globals, action, name, revision] {
    *action = [&globals, name, revision] { return Describe(globals, *name, *revision); };
  });
}

void AddHealth(CLI::App& app, const Globals& globals, Action* action) {
  CLI::App* command = app.add_subcommand("health", "Tell whether the server, or a block, serves");
  auto block = std::make_shared<std::string>();
  command->add_option("block", *block, "By default the server")->type_name("NAME");
  command->footer("Exit code 0 when it serves, 1 otherwise.");
  command->callback([&globals, action, block] {
    *action = [&globals, block] { return Health(globals, *block); };
  });
}

}  // namespace fuseblock::cli
