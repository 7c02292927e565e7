// `fuseblock run`: sends tensors from files through a block, once, and keeps or shows the outputs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/command.h"
#include "client/cli/dtype.h"
#include "client/cli/output.h"
#include "client/cli/tensor_file.h"

namespace fuseblock::cli {
namespace {

struct RunOptions {
  std::string block;
  std::string revision;
  std::vector<std::string> inputs, outputs;  // [NAME=]FILE
};

// "residual=r.npy" -> {"residual", "r.npy"}; "x.npy" -> {"", "x.npy"}
std::pair<std::string, std::string> NameAndPath(const std::string& text) {
  const size_t at = text.find('=');
  if (at == std::string::npos) return {"", text};
  return {text.substr(0, at), text.substr(at + 1)};
}

bool IsInteger(v1::DataType type) {
  return type == v1::DATA_TYPE_INT32 || type == v1::DATA_TYPE_INT64;
}

absl::StatusOr<std::vector<FileTensor>> ReadInputs(const RunOptions& options) {
  std::vector<FileTensor> inputs;
  for (const std::string& argument : options.inputs) {
    const auto [name, path] = NameAndPath(argument);
    auto tensors = ReadTensors(path);
    if (!tensors.ok()) return tensors.status();
    if (!name.empty() && tensors->size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected one tensor to call ", name, ", got ", tensors->size()));
    }
    for (FileTensor& tensor : *tensors) {
      if (!name.empty()) {
        tensor.name = name;
      } else if (tensor.name.empty()) {
        tensor.name = IsInteger(tensor.type) ? "ids" : "x";
      }
      inputs.push_back(std::move(tensor));
    }
  }
  return inputs;
}

absl::Status WriteOutputs(const RunOptions& options, const std::vector<FileTensor>& outputs) {
  for (const std::string& argument : options.outputs) {
    const auto [name, path] = NameAndPath(argument);
    std::vector<FileTensor> chosen;
    for (const FileTensor& output : outputs) {
      if (name.empty() || output.name == name) chosen.push_back(output);
    }
    if (chosen.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no output is called ", name, "; there is ",
          absl::StrJoin(outputs, " and ",
                        [](std::string* out, const FileTensor& t) { *out += t.name; })));
    }
    if (absl::Status status = WriteTensors(path, chosen); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// What a tensor's values are like: extremes and mean of the finite ones, and how many are not.
struct Summary {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  double mean = 0;
  int64_t count = 0, not_finite = 0;
};

Summary Summarise(const FileTensor& tensor) {
  Summary summary;
  summary.count = static_cast<int64_t>(tensor.data.size()) / Traits(tensor.type).size;
  const auto* data = reinterpret_cast<const std::byte*>(tensor.data.data());
  double sum = 0;
  for (int64_t i = 0; i < summary.count; ++i) {
    const double value = ElementAt(tensor.type, data, i);
    if (!std::isfinite(value)) {
      ++summary.not_finite;
      continue;
    }
    summary.least = std::min(summary.least, value);
    summary.most = std::max(summary.most, value);
    sum += value;
  }
  const int64_t finite = summary.count - summary.not_finite;
  if (finite > 0) summary.mean = sum / static_cast<double>(finite);
  return summary;
}

std::string SummaryText(const Summary& s) {
  if (s.count == s.not_finite) return s.count == 0 ? "empty" : "no finite value";
  std::string text = absl::StrFormat("%.5g .. %.5g, mean %.5g", s.least, s.most, s.mean);
  if (s.not_finite > 0) absl::StrAppend(&text, ", ", s.not_finite, " not finite");
  return text;
}

void Report(const Globals& globals, const client::Answer& answer,
            const std::vector<FileTensor>& outputs, absl::Duration took) {
  if (globals.json) {
    nlohmann::ordered_json json = {{"backend", answer.backend},
                                   {"revision", answer.revision},
                                   {"duration_us", absl::ToDoubleMicroseconds(took)},
                                   {"timings_us", answer.timings_us}};
    for (const FileTensor& output : outputs) {
      const Summary s = Summarise(output);
      json["outputs"].push_back({{"name", output.name},
                                 {"dtype", Traits(output.type).name},
                                 {"shape", output.shape},
                                 {"not_finite", s.not_finite}});
      if (s.count > s.not_finite) {  // JSON has no infinities
        json["outputs"].back().update({{"min", s.least}, {"max", s.most}, {"mean", s.mean}});
      }
    }
    PrintJson(json);
    return;
  }
  for (const FileTensor& output : outputs) {
    std::printf("%s %s  %s\n", Paint(Colour::kBold, output.name).c_str(),
                ShapeText(output.shape, output.type).c_str(),
                SummaryText(Summarise(output)).c_str());
  }
  const std::string phases =
      absl::StrJoin(answer.timings_us, ", ", [](std::string* out, const auto& phase) {
        absl::StrAppend(out, phase.first, " ", MicrosecondsText(phase.second));
      });
  std::printf("answered by %s, revision %s, in %s%s\n", answer.backend.c_str(),
              answer.revision.c_str(), MicrosecondsText(absl::ToDoubleMicroseconds(took)).c_str(),
              phases.empty() ? "" : absl::StrCat(" (", phases, ")").c_str());
}

absl::Status Run(const Globals& globals, const RunOptions& options) {
  const auto inputs = ReadInputs(options);
  if (!inputs.ok()) return inputs.status();
  std::vector<client::Tensor> tensors;
  for (const FileTensor& input : *inputs) {
    tensors.push_back({input.name, input.type, input.shape, client::Bytes(input.data)});
  }
  client::CallOptions call = globals.Call();
  call.timings = true;
  const client::Request request(options.block, tensors, options.revision);
  client::Client client(globals.server);
  const absl::Time start = absl::Now();
  const auto answer = client.Run(request, call);
  const absl::Duration took = absl::Now() - start;
  if (!answer.ok()) return answer.status();
  std::vector<FileTensor> outputs;
  for (const client::Tensor& output : answer->outputs) {
    outputs.push_back(
        {output.name, output.data_type, output.shape,
         std::string(reinterpret_cast<const char*>(output.data.data()), output.data.size())});
  }
  if (absl::Status status = WriteOutputs(options, outputs); !status.ok()) return status;
  Report(globals, *answer, outputs, took);
  return absl::OkStatus();
}

}  // namespace

void AddRun(CLI::App& app, const Globals& globals, Action* action) {
  CLI::App* command = app.add_subcommand("run", "Run a block on tensors from files");
  auto options = std::make_shared<RunOptions>();
  command->add_option("block", options->block, "For example smollm2.layers.0.mlp")
      ->type_name("NAME")
      ->required();
  command
      ->add_option("-i,--input", options->inputs,
                   "[NAME=]FILE, repeatable: a .npy, or a .safetensors with the inputs by name")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("-o,--output", options->outputs,
                   "[NAME=]FILE, repeatable: a .npy for one output, a .safetensors for all")
      ->type_name("FILE");
  command->add_option("--revision", options->revision, "By default the one that answers")
      ->type_name("N");
  command->footer(
      "A .npy without NAME is `x`, or `ids` when it holds integers. NumPy has no BF16: a .npy of\n"
      "two-byte voids (what ml_dtypes saves) is taken as BF16, and written so.\n\n"
      "Example: fuseblock run smollm2.layers.0.ffn_path -i x.npy -i residual=a.npy -o y.npy");
  command->callback([&globals, action, options] {
    *action = [&globals, options] { return Run(globals, *options); };
  });
}

}  // namespace fuseblock::cli
