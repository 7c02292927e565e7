#include "server/config.h"

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>
#include <utility>
#include <variant>

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace fuseblock {
namespace {

constexpr int64_t kConfigVersion = 1;
// gRPC's receive limit is an int and 64 KiB above max_request_bytes.
constexpr int64_t kRequestBytesMax = std::numeric_limits<int32_t>::max() - (1 << 16);

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// One key: where its value goes and what it may be.
template <typename T>
struct Key {
  std::string_view name;
  std::variant<std::string T::*, int64_t T::*> field;
  int64_t min = 0, max = 0;                            // integers
  std::vector<std::string_view> choices;               // strings; empty: any
  std::string (*problem)(std::string_view) = nullptr;  // strings: what is wrong, or empty
  std::string_view help;
};

// The three forms of a table's line.
template <typename T>
Key<T> Number(std::string_view name, int64_t T::*field, int64_t min, int64_t max,
              std::string_view help) {
  return {name, field, min, max, {}, nullptr, help};
}
template <typename T>
Key<T> Choice(std::string_view name, std::string T::*field, std::vector<std::string_view> choices,
              std::string_view help) {
  return {name, field, 0, 0, std::move(choices), nullptr, help};
}
template <typename T>
Key<T> Text(std::string_view name, std::string T::*field, std::string (*problem)(std::string_view),
            std::string_view help) {
  return {name, field, 0, 0, {}, problem, help};
}

// No limit that anybody sets is larger.
constexpr int64_t kMany = int64_t{1} << 40;

std::string AddressProblem(std::string_view value);
std::string DevicesProblem(std::string_view value);
std::string LayersProblem(std::string_view value);

// In the order in which they are printed: keys of the top first, then section by section.
const std::vector<Key<Config>>& Keys() {
  using C = Config;
  static const auto* keys = new std::vector<Key<Config>>{
      Text("devices", &C::devices, DevicesProblem,
           "auto, or cpu, cuda:N separated by commas, the preferred one first"),
      Text("server.address", &C::server_address, AddressProblem,
           "gRPC listens here: HOST:PORT, unix:PATH"),
      Text("metrics.address", &C::metrics_address, AddressProblem,
           "HTTP for /metrics, /healthz, /readyz: HOST:PORT, empty for off"),
      Text("admin.address", &C::admin_address, AddressProblem,
           "gRPC for operators, who may load any folder and end the server: HOST:PORT, unix:PATH, "
           "empty for off"),
      Number("admission.max_queue_tokens", &C::max_queue_tokens, 1, kMany,
             "tokens that may wait or run at a time"),
      Number("admission.max_queue_bytes", &C::max_queue_bytes, 1, kMany,
             "bytes of requests that may wait or run at a time"),
      Number("admission.max_queue_requests", &C::max_queue_requests, 1, kMany,
             "requests that may wait or run at a time"),
      Number("admission.max_request_tokens", &C::max_request_tokens, 1, 1 << 24,
             "tokens of one request"),
      Number("admission.max_request_bytes", &C::max_request_bytes, 1, kRequestBytesMax,
             "bytes of one request's tensors"),
      Number("admission.max_stream_requests", &C::max_stream_requests, 1, 1 << 16,
             "requests of one stream in flight; while there are as many the server reads no more"),
      Number("engine.lanes_per_device", &C::lanes_per_device, 1, 64,
             "batches that run at a time on one device"),
      Number("engine.cpu_threads", &C::cpu_threads, 0, 1024,
             "threads of one CPU lane; 0 shares the machine's cores out"),
      Number("engine.max_batch_tokens", &C::max_batch_tokens, 1, 1 << 24,
             "tokens of one batch; every lane's memory is sized for it; a longer request is "
             "computed in chunks of as many"),
      Number("engine.max_graphs", &C::max_graphs, 0, 1 << 20,
             "CUDA graphs of one lane, 8 for each form of a block; what no longer fits is launched "
             "directly"),
      Number("engine.max_device_bytes", &C::max_device_bytes, 0, int64_t{1} << 50,
             "what weights, lanes and graphs may hold of one GPU; 0 for what is free at the start, "
             "less some for the driver"),
      Number("engine.max_host_bytes", &C::max_host_bytes, 0, int64_t{1} << 50,
             "what weights and lanes may hold of the host's memory; 0 for no limit"),
      Number("engine.watchdog_seconds", &C::watchdog_seconds, 1, 3600,
             "a GPU's batch hangs when it takes longer, and ten times longer than predicted"),
      Text("engine.tuning_file", &C::tuning_file, nullptr,
           "what was measured about a GPU to choose among kernels that give the same bits is kept "
           "there for the next start; empty: measured at every start"),
      Choice("fallback.policy", &C::fallback_policy, {"cpu", "refuse"},
             "who answers for a lost device"),
      Number("drain.notice_seconds", &C::drain_notice_seconds, 0, 3600,
             "from NOT_SERVING until new requests are refused, for load balancers to notice"),
      Number("drain.grace_seconds", &C::drain_grace_seconds, 0, 86400,
             "for what is in flight to finish"),
      Choice("log.level", &C::log_level, {"debug", "info", "warning", "error"}, "what is logged"),
      Choice("log.format", &C::log_format, {"text", "json"}, "how it is logged"),
  };
  return *keys;
}

const std::vector<Key<ModelSettings>>& ModelKeys() {
  using M = ModelSettings;
  static const auto* keys = new std::vector<Key<ModelSettings>>{
      Text("path", &M::path, nullptr, "the folder with config.json and the safetensors"),
      Choice("dtype", &M::dtype, {"", "FP32", "FP16", "BF16"},
             "compute dtype; empty for the checkpoint's"),
      Choice("rounding", &M::rounding, {"fused", "hf"},
             "fused: one rounding per stored tensor; hf: where Hugging Face rounds"),
      Text("layers", &M::layers, LayersProblem, "\"0-3,29\"; empty for all"),
      Text("parts", &M::parts, nullptr, "\"mlp,ffn_norm\"; empty for all"),
      Number("max_queue_tokens", &M::max_queue_tokens, 0, kMany,
             "tokens that may wait or run at a time for each of its blocks; 0: as the server"),
      Number("max_queue_bytes", &M::max_queue_bytes, 0, kMany, "the same in bytes"),
      Number("max_queue_requests", &M::max_queue_requests, 0, kMany, "the same in requests"),
      Number("replicas", &M::replicas, 0, 64,
             "GPUs that hold each block, chosen by free memory; 0 for all"),
  };
  return *keys;
}

const std::vector<Key<TenantConfig>>& TenantKeys() {
  using T = TenantConfig;
  static const auto* keys = new std::vector<Key<TenantConfig>>{
      Number("max_queue_tokens", &T::max_queue_tokens, 0, kMany,
             "the tenant's tokens that may wait or run at a time; 0: no quota"),
      Number("max_queue_bytes", &T::max_queue_bytes, 0, kMany, "the same in bytes"),
      Number("max_queue_requests", &T::max_queue_requests, 0, kMany, "the same in requests"),
  };
  return *keys;
}

// The tables of named things: models.NAME.KEY, tenants.NAME.KEY. Calls use(table's name, its keys,
// the member of Config) for each.
template <typename Use>
void ForEachTable(Use&& use) {
  use(std::string_view("models"), ModelKeys(), &Config::models);
  use(std::string_view("tenants"), TenantKeys(), &Config::tenants);
}

std::string AddressProblem(std::string_view value) {
  if (value.empty()) return "";
  if (value.starts_with("unix:")) return value.size() > 5 ? "" : "expected a path after unix:";
  const size_t colon = value.rfind(':');
  int port = -1;
  if (colon == std::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(View(value.substr(colon + 1)), &port) || port < 0 || port > 65535) {
    return "expected HOST:PORT or unix:PATH";
  }
  return "";
}

std::string DevicesProblem(std::string_view value) {
  if (value == "auto") return "";
  std::set<std::string> seen;
  for (absl::string_view item : absl::StrSplit(View(value), ',')) {
    int index = -1;
    const bool cuda =
        absl::StartsWith(item, "cuda:") && absl::SimpleAtoi(item.substr(5), &index) && index >= 0;
    if (item != "cpu" && !cuda) return "expected auto, or cpu, cuda:N separated by commas";
    if (!seen.insert(std::string(item)).second) return absl::StrCat(item, " is named twice");
  }
  return "";
}

std::string LayersProblem(std::string_view value) {
  if (value.empty()) return "";
  for (absl::string_view item : absl::StrSplit(View(value), ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(item, '-');
    int first = -1, last = -1;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first) {
      return "expected layers like \"0-3,29\"";
    }
  }
  return "";
}

template <typename T>
const Key<T>* FindKey(const std::vector<Key<T>>& keys, std::string_view name) {
  for (const Key<T>& key : keys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

absl::Status UnknownKey(std::string_view name) {
  std::vector<std::string> known = {"config_version"};
  for (const auto& key : Keys()) known.emplace_back(key.name);
  // A model's key is compared under the name that the user gave the model, a tenant's likewise.
  const std::vector<absl::string_view> path = absl::StrSplit(View(name), absl::MaxSplits('.', 2));
  ForEachTable([&](std::string_view table, const auto& keys, auto) {
    const absl::string_view thing = path.size() > 1 && path[0] == View(table) ? path[1] : "NAME";
    for (const auto& key : keys) {
      known.push_back(absl::StrCat(View(table), ".", thing, ".", View(key.name)));
    }
  });
  const auto nearest =
      std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
        return EditDistance(name, a) < EditDistance(name, b);
      });
  return absl::InvalidArgumentError(
      absl::StrCat(View(name), ": unknown key; the nearest known one is ", *nearest));
}

// What a file or a flag gives for a key.
using Value = std::variant<std::string, int64_t>;

template <typename T>
absl::Status Assign(const Key<T>& key, std::string_view full_name, const Value& value, T& target) {
  const auto fail = [&](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(View(full_name), ": ", parts...));
  };
  if (const auto* number = std::get_if<int64_t T::*>(&key.field)) {
    const int64_t* given = std::get_if<int64_t>(&value);
    if (given == nullptr) {
      return fail("expected an integer, got \"", std::get<std::string>(value), "\"");
    }
    if (*given < key.min || *given > key.max) {
      return fail("expected ", key.min, " to ", key.max, ", got ", *given);
    }
    target.*(*number) = *given;
    return absl::OkStatus();
  }
  const std::string* given = std::get_if<std::string>(&value);
  if (given == nullptr) return fail("expected a string, got ", std::get<int64_t>(value));
  if (!key.choices.empty() &&
      std::find(key.choices.begin(), key.choices.end(), *given) == key.choices.end()) {
    const auto quoted = [](std::string* out, std::string_view choice) {
      absl::StrAppend(out, "\"", View(choice), "\"");
    };
    return fail("expected one of ", absl::StrJoin(key.choices, ", ", quoted), "; got \"", *given,
                "\"");
  }
  if (key.problem != nullptr) {
    const std::string problem = key.problem(*given);
    if (!problem.empty()) return fail(problem, "; got \"", *given, "\"");
  }
  target.*std::get<std::string T::*>(key.field) = *given;
  return absl::OkStatus();
}

absl::Status CheckName(std::string_view table, std::string_view name) {
  if (IsModelName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      View(table), ".", View(name), ": expected a name of letters, digits, '_' and '-'"));
}

// The text of a flag as the key's kind of value; an integer's text that is none stays a string,
// which Assign then refuses with the key's name.
template <typename T>
Value ParseText(const Key<T>& key, std::string_view text) {
  int64_t number = 0;
  if (std::holds_alternative<int64_t T::*>(key.field) && absl::SimpleAtoi(View(text), &number)) {
    return number;
  }
  return std::string(text);
}

// Calls use(key, target) with the table's entry for a full name and the struct that it belongs to.
template <typename Use>
absl::Status WithKey(std::string_view name, Config& config, Use&& use) {
  if (const Key<Config>* key = FindKey(Keys(), name)) return use(*key, config);
  const std::vector<absl::string_view> path = absl::StrSplit(View(name), absl::MaxSplits('.', 2));
  absl::Status status = UnknownKey(name);
  ForEachTable([&](std::string_view table, const auto& keys, auto things) {
    if (path.size() != 3 || path[0] != View(table)) return;
    const std::string thing(path[1]);
    const auto* key = FindKey(keys, std::string(path[2]));
    if (absl::Status bad_name = CheckName(table, thing); !bad_name.ok()) {
      status = bad_name;
    } else if (key != nullptr) {
      status = use(*key, (config.*things)[thing]);
    }
  });
  return status;
}

absl::StatusOr<Value> FromToml(const std::string& name, const toml::node& node) {
  if (const auto* text = node.as_string()) return Value(text->get());
  if (const auto* number = node.as_integer()) return Value(number->get());
  std::ostringstream kind;
  kind << node.type();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected a string or an integer, got a ", kind.str()));
}

absl::Status SetValue(const std::string& name, const toml::node& node, Config& config) {
  return WithKey(name, config, [&](const auto& known, auto& target) -> absl::Status {
    const absl::StatusOr<Value> value = FromToml(name, node);
    return value.ok() ? Assign(known, name, *value, target) : value.status();
  });
}

// Whether a table of that name can hold keys; makes the model or tenant that it names.
absl::Status EnterTable(const std::string& prefix, const std::string& name, Config& config) {
  for (const Key<Config>& known : Keys()) {
    if (known.name.starts_with(name + ".")) return absl::OkStatus();
  }
  absl::Status status = UnknownKey(name);
  ForEachTable([&](std::string_view table, const auto&, auto things) {
    if (name == table) status = absl::OkStatus();
    if (prefix != table) return;
    const std::string thing = name.substr(prefix.size() + 1);
    (config.*things)[thing];
    status = CheckName(table, thing);
  });
  return status;
}

// Walks tables down to values. A table that leads to no known key is an error even when it is
// empty.
absl::Status ApplyTable(const std::string& prefix, const toml::table& table,
                        std::string_view source, Config& config) {
  for (const auto& [key, node] : table) {
    const std::string name =
        prefix.empty() ? std::string(key.str()) : absl::StrCat(prefix, ".", std::string(key.str()));
    if (name == "config_version") continue;
    const toml::table* inner = node.as_table();
    const absl::Status status =
        inner != nullptr ? EnterTable(prefix, name, config) : SetValue(name, node, config);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(View(source), ":", node.source().begin.line, ": ", status.message()));
    }
    if (inner == nullptr) continue;
    absl::Status below = ApplyTable(name, *inner, source, config);
    if (!below.ok()) return below;
  }
  return absl::OkStatus();
}

absl::Status CheckVersion(const toml::table& table, std::string_view source) {
  const toml::node* version = table.get("config_version");
  if (version == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(View(source), ": config_version is missing; expected ", kConfigVersion));
  }
  const auto* number = version->as_integer();
  if (number == nullptr || number->get() != kConfigVersion) {
    std::ostringstream given;
    given << toml::node_view<const toml::node>(version);
    return absl::InvalidArgumentError(absl::StrCat(View(source), ": config_version: expected ",
                                                   kConfigVersion, ", got ", given.str()));
  }
  return absl::OkStatus();
}

template <typename T>
void PrintKey(const Key<T>& key, std::string_view name, const T& values, std::ostream& out) {
  out << "# " << key.help << "\n" << name << " = ";
  if (const auto* number = std::get_if<int64_t T::*>(&key.field)) {
    out << values.*(*number) << "\n";
  } else {
    out << toml::value<std::string>(values.*std::get<std::string T::*>(key.field)) << "\n";
  }
}

}  // namespace

bool IsModelName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-';
  });
}

absl::Status ApplyToml(std::string_view text, std::string_view source, Config& config) {
  try {
    const toml::table table = toml::parse(text, source);
    if (absl::Status status = CheckVersion(table, source); !status.ok()) return status;
    return ApplyTable("", table, source, config);
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(absl::StrCat(View(source), ":", error.source().begin.line,
                                                   ": ", View(error.description())));
  }
}

absl::Status ApplySetting(std::string_view name, std::string_view value, Config& config) {
  return WithKey(name, config, [&](const auto& key, auto& target) {
    return Assign(key, name, ParseText(key, value), target);
  });
}

absl::Status CheckConfig(const Config& config) {
  for (const auto& [name, model] : config.models) {
    if (model.path.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("models.", name, ".path: expected the checkpoint's folder, got \"\""));
    }
  }
  if (config.server_address.empty()) {
    return absl::InvalidArgumentError("server.address: expected HOST:PORT or unix:PATH, got \"\"");
  }
  if (config.metrics_address.starts_with("unix:")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "metrics.address: expected HOST:PORT or nothing, got \"", config.metrics_address, "\""));
  }
  if (config.max_request_tokens > config.max_queue_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("admission.max_request_tokens: expected at most admission.max_queue_tokens = ",
                     config.max_queue_tokens, ", got ", config.max_request_tokens));
  }
  if (config.max_request_bytes > config.max_queue_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("admission.max_request_bytes: expected at most admission.max_queue_bytes = ",
                     config.max_queue_bytes, ", got ", config.max_request_bytes));
  }
  return absl::OkStatus();
}

std::string PrintConfig(const Config& config) {
  std::ostringstream out;
  out << "config_version = " << kConfigVersion << "\n";
  std::string_view section;
  for (const Key<Config>& key : Keys()) {
    const size_t dot = key.name.find('.');
    const std::string_view head = dot == std::string_view::npos ? "" : key.name.substr(0, dot);
    if (head != section) out << "\n[" << head << "]\n";
    section = head;
    PrintKey(key, head.empty() ? key.name : key.name.substr(dot + 1), config, out);
  }
  ForEachTable([&](std::string_view table, const auto& keys, auto things) {
    for (const auto& [name, thing] : config.*things) {
      out << "\n[" << table << "." << name << "]\n";
      for (const auto& key : keys) PrintKey(key, key.name, thing, out);
    }
  });
  return out.str();
}

std::string DescribeKeys() {
  std::string text = "Keys of the configuration (default):\n";
  const Config defaults;
  for (const Key<Config>& key : Keys()) {
    std::ostringstream value;
    std::visit([&](auto field) { value << defaults.*field; }, key.field);
    absl::StrAppend(&text, "  ", View(key.name), " (", value.str(), "): ", View(key.help), "\n");
  }
  ForEachTable([&](std::string_view table, const auto& keys, auto) {
    for (const auto& key : keys) {
      absl::StrAppend(&text, "  ", View(table), ".NAME.", View(key.name), ": ", View(key.help),
                      "\n");
    }
  });
  return text;
}

}  // namespace fuseblock
