// The server's configuration: one TOML file, `--set section.key=value`, `--model NAME=DIR`, and a
// default for everything. The keys are a table in config.cc: name, where the value goes, its range
// or choices, one line for people; parsing, checking, printing and --help all read it.
//
//   config_version = 1
//   devices = "auto"
//   [models.smollm2]
//   path = "/models/smollm2"
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fuseblock {

struct ModelSettings {
  std::string path;                // the folder with config.json and the safetensors
  std::string dtype;               // FP32, FP16, BF16; empty: the checkpoint's
  std::string rounding = "fused";  // fused, hf
  std::string layers;              // "0-3,29"; empty: all
  std::string parts;               // "mlp,ffn_norm"; empty: all
  int64_t replicas = 1;            // GPUs that hold each block; 0: all
  // Of each of its blocks, admitted at a time; 0: what bounds the server bounds it.
  int64_t max_queue_tokens = 0;
  int64_t max_queue_bytes = 0;
  int64_t max_queue_requests = 0;
};

// Of one tenant, admitted at a time; 0: no quota.
struct TenantConfig {
  int64_t max_queue_tokens = 0;
  int64_t max_queue_bytes = 0;
  int64_t max_queue_requests = 0;
};

// The name under which `tenants` has the quota of those that it does not name.
inline constexpr char kAnyTenant[] = "default";

// Addresses are HOST:PORT (port 0 picks one), unix:PATH where gRPC listens, or empty for off.
struct Config {
  std::string devices = "auto";  // auto, or a list of cpu, cuda:N, the preferred one first
  std::string server_address = "127.0.0.1:8001";
  std::string metrics_address = "127.0.0.1:8002";
  std::string admin_address = "127.0.0.1:8003";
  int64_t max_queue_tokens = 65536;
  int64_t max_queue_bytes = int64_t{1} << 30;
  int64_t max_queue_requests = 65536;
  int64_t max_request_tokens = 4096;
  int64_t max_request_bytes = int64_t{1} << 27;
  int64_t max_stream_requests = 64;
  int64_t lanes_per_device = 2;
  int64_t cpu_threads = 0;
  int64_t max_batch_tokens = 4096;
  int64_t max_graphs = 2048;
  int64_t max_device_bytes = 0;
  int64_t max_host_bytes = 0;
  int64_t watchdog_seconds = 10;
  std::string tuning_file;
  std::string fallback_policy = "cpu";
  int64_t drain_notice_seconds = 0;
  int64_t drain_grace_seconds = 30;
  std::string log_level = "info";
  std::string log_format = "text";
  std::map<std::string, ModelSettings> models;  // by name
  std::map<std::string, TenantConfig> tenants;  // by name
};

// Sets what a TOML text sets; `source` names it in errors. Does not check the whole.
absl::Status ApplyToml(std::string_view text, std::string_view source, Config& config);
// Sets one key from text: ApplySetting("admission.max_queue_tokens", "1024", config).
absl::Status ApplySetting(std::string_view key, std::string_view value, Config& config);
// What no single key can show: limits that contradict one another, a model without a path.
absl::Status CheckConfig(const Config& config);
// The configuration as TOML with every key, which ApplyToml reads back to the same Config.
std::string PrintConfig(const Config& config);
// Every key with its default and what it does, for --help.
std::string DescribeKeys();
// Whether it can name a model: letters, digits, '_' and '-'.
bool IsModelName(std::string_view name);

}  // namespace fuseblock
