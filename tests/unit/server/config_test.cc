// The configuration: every key reads, prints and reads back; every mistake names the key.
#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/command_line.h"

namespace fuseblock {
namespace {

using ::testing::HasSubstr;

std::string TomlError(const std::string& text) {
  Config config;
  const absl::Status status = ApplyToml("config_version = 1\n" + text, "f.toml", config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

absl::StatusOr<CommandLine> Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "fuseblock-server");
  return ParseCommandLine(static_cast<int>(flags.size()), flags.data(), "1.2.3");
}

std::string FlagError(std::vector<const char*> flags) {
  const auto parsed = Parse(std::move(flags));
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

TEST(ConfigTest, ReadsEverySection) {
  Config config;
  ASSERT_EQ(ApplyToml(R"(config_version = 1
devices = "cuda:1,cpu"
[server]
address = "unix:/tmp/s.sock"
[admission]
max_queue_tokens = 10
[models.a-b_1]
path = "/m"
rounding = "hf"
layers = "0-3,29"
)",
                      "f.toml", config),
            absl::OkStatus());
  EXPECT_EQ(config.devices, "cuda:1,cpu");
  EXPECT_EQ(config.server_address, "unix:/tmp/s.sock");
  EXPECT_EQ(config.max_queue_tokens, 10);
  ASSERT_TRUE(config.models.contains("a-b_1"));
  EXPECT_EQ(config.models["a-b_1"].path, "/m");
  EXPECT_EQ(config.models["a-b_1"].rounding, "hf");
  EXPECT_EQ(config.models["a-b_1"].layers, "0-3,29");
}

TEST(ConfigTest, PrintedConfigReadsBackWithEveryKey) {
  Config config;
  ASSERT_EQ(ApplySetting("admission.max_request_bytes", "12345", config), absl::OkStatus());
  ASSERT_EQ(ApplySetting("models.m.path", "/a \"b\"\\c\n", config), absl::OkStatus());
  ASSERT_EQ(ApplySetting("models.m.dtype", "BF16", config), absl::OkStatus());
  ASSERT_EQ(ApplySetting("models.m.max_queue_tokens", "7", config), absl::OkStatus());
  ASSERT_EQ(ApplySetting("tenants.default.max_queue_requests", "3", config), absl::OkStatus());
  const std::string printed = PrintConfig(config);
  Config again;
  ASSERT_EQ(ApplyToml(printed, "printed", again), absl::OkStatus()) << printed;
  EXPECT_EQ(PrintConfig(again), printed);
  EXPECT_EQ(again.max_request_bytes, 12345);
  EXPECT_EQ(again.models["m"].path, "/a \"b\"\\c\n");
  // The keys that documents and deployments rely on.
  for (const char* line : {"[server]",
                           "[metrics]",
                           "[admission]",
                           "[engine]",
                           "[fallback]",
                           "[drain]",
                           "[log]",
                           "[models.m]",
                           "[tenants.default]",
                           "devices = ",
                           "address = ",
                           "max_queue_tokens = ",
                           "max_queue_bytes = ",
                           "max_queue_requests = 65536",
                           "max_queue_requests = 3",
                           "max_queue_tokens = 7",
                           "max_request_tokens = ",
                           "lanes_per_device = ",
                           "cpu_threads = ",
                           "policy = ",
                           "grace_seconds = ",
                           "level = ",
                           "format = ",
                           "parts = "}) {
    EXPECT_THAT(printed, HasSubstr(line));
  }
}

TEST(ConfigTest, TenantsHaveNamesAndQuotas) {
  Config config;
  ASSERT_EQ(
      ApplyToml("config_version = 1\n[tenants.a]\nmax_queue_bytes = 5\n[tenants.b]", "f", config),
      absl::OkStatus());
  EXPECT_EQ(config.tenants["a"].max_queue_bytes, 5);
  EXPECT_EQ(config.tenants["a"].max_queue_tokens, 0);
  EXPECT_TRUE(config.tenants.contains("b"));
  EXPECT_EQ(TomlError("[tenants.\"a b\"]"),
            "f.toml:2: tenants.a b: expected a name of letters, digits, '_' and '-'");
  EXPECT_EQ(TomlError("[tenants.a]\nmax_queue_token = 1"),
            "f.toml:3: tenants.a.max_queue_token: unknown key; the nearest known one is "
            "tenants.a.max_queue_tokens");
  EXPECT_EQ(TomlError("[tenants.a]\nmax_queue_tokens = -1"),
            "f.toml:3: tenants.a.max_queue_tokens: expected 0 to 1099511627776, got -1");
}

TEST(ConfigTest, UnknownKeysNameTheNearest) {
  EXPECT_EQ(TomlError("[admission]\nmax_quue_tokens = 3"),
            "f.toml:3: admission.max_quue_tokens: unknown key; the nearest known one is "
            "admission.max_queue_tokens");
  EXPECT_EQ(TomlError("[models.tiny]\npaht = \"/m\""),
            "f.toml:3: models.tiny.paht: unknown key; the nearest known one is models.tiny.path");
  EXPECT_THAT(TomlError("[sever]\n"), HasSubstr("sever: unknown key"));
  EXPECT_THAT(TomlError("server = \"x\""), HasSubstr("server: unknown key"));
  EXPECT_THAT(TomlError("[server.address]\nx = 1"), HasSubstr("server.address: unknown key"));
  EXPECT_THAT(TomlError("device = \"cpu\""), HasSubstr("the nearest known one is devices"));
}

TEST(ConfigTest, WrongTypesAndRangesNameTheKey) {
  EXPECT_EQ(TomlError("[admission]\nmax_queue_tokens = \"many\""),
            "f.toml:3: admission.max_queue_tokens: expected an integer, got \"many\"");
  EXPECT_EQ(TomlError("[engine]\nlanes_per_device = 0"),
            "f.toml:3: engine.lanes_per_device: expected 1 to 64, got 0");
  EXPECT_THAT(TomlError("[engine]\nlanes_per_device = 1.5"),
              HasSubstr("expected a string or an integer, got a"));
  EXPECT_EQ(TomlError("[server]\naddress = 8001"),
            "f.toml:3: server.address: expected a string, got 8001");
  EXPECT_EQ(TomlError("[fallback]\npolicy = \"gpu\""),
            "f.toml:3: fallback.policy: expected one of \"cpu\", \"refuse\"; got \"gpu\"");
  EXPECT_THAT(TomlError("[server]\naddress = \"localhost\""), HasSubstr("expected HOST:PORT"));
  EXPECT_THAT(TomlError("[server]\naddress = \"h:70000\""), HasSubstr("expected HOST:PORT"));
  EXPECT_THAT(TomlError("devices = \"cpu,cpu\""), HasSubstr("named twice"));
  EXPECT_THAT(TomlError("devices = \"gpu\""), HasSubstr("expected auto"));
  EXPECT_THAT(TomlError("[models.m]\nlayers = \"3-1\""), HasSubstr("models.m.layers: expected"));
  EXPECT_THAT(TomlError("[models.\"a.b\"]\npath = \"x\""), HasSubstr("expected a name of letters"));
}

TEST(ConfigTest, TheVersionIsAsked) {
  Config config;
  EXPECT_THAT(std::string(ApplyToml("devices = \"cpu\"", "f", config).message()),
              HasSubstr("config_version is missing; expected 1"));
  EXPECT_THAT(std::string(ApplyToml("config_version = 2", "f", config).message()),
              HasSubstr("config_version: expected 1, got 2"));
  EXPECT_THAT(std::string(ApplyToml("= broken", "f", config).message()), HasSubstr("f:1: "));
}

TEST(ConfigTest, ChecksTheWhole) {
  Config config;
  EXPECT_EQ(CheckConfig(config), absl::OkStatus());
  config.max_queue_tokens = config.max_request_tokens - 1;
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("admission.max_queue_tokens"));
  config = {};
  config.models["m"] = {};
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("models.m.path: expected"));
  config = {};
  config.server_address = "";
  EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("server.address"));
}

TEST(CommandLineTest, FlagsInAnyOrderAndRepeated) {
  const auto parsed = Parse({"--model", "a=/x=y", "--set", "devices=cpu,cuda:0", "--model=b=/z",
                             "--set", "models.b.dtype=FP16", "--set", "log.level=debug"});
  ASSERT_EQ(parsed.status(), absl::OkStatus());
  EXPECT_EQ(parsed->action, CommandLine::Action::kServe);
  EXPECT_EQ(parsed->config.models.at("a").path, "/x=y");
  EXPECT_EQ(parsed->config.models.at("b").dtype, "FP16");
  EXPECT_EQ(parsed->config.devices, "cpu,cuda:0");
  EXPECT_EQ(parsed->config.log_level, "debug");
}

TEST(CommandLineTest, WhatItIsAskedToDo) {
  EXPECT_EQ(Parse({"--check-config"})->action, CommandLine::Action::kCheckConfig);
  EXPECT_EQ(Parse({"--healthcheck"})->action, CommandLine::Action::kHealthcheck);
  const auto printed = Parse({"--print-config", "--set", "drain.grace_seconds=7"});
  EXPECT_EQ(printed->action, CommandLine::Action::kPrintConfig);
  EXPECT_THAT(printed->text, HasSubstr("grace_seconds = 7"));
  const auto version = Parse({"--version"});
  EXPECT_EQ(version->action, CommandLine::Action::kExit);
  EXPECT_THAT(version->text, HasSubstr("1.2.3"));
  EXPECT_THAT(Parse({"--help"})->text, HasSubstr("admission.max_queue_tokens (65536)"));
}

TEST(CommandLineTest, Mistakes) {
  EXPECT_THAT(FlagError({"--frob"}), HasSubstr("--frob"));
  EXPECT_THAT(FlagError({"stray"}), HasSubstr("stray"));
  EXPECT_THAT(FlagError({"--set", "drain.grace_seconds"}), HasSubstr("expected section.key=value"));
  EXPECT_THAT(FlagError({"--set", "drain.grace_secs=1"}), HasSubstr("drain.grace_seconds"));
  EXPECT_THAT(FlagError({"--model", "/just/a/path"}), HasSubstr("expected NAME=DIR"));
  EXPECT_THAT(FlagError({"--config", "/no/such/file"}), HasSubstr("/no/such/file: cannot be read"));
  EXPECT_THAT(FlagError({"--check-config", "--print-config"}), HasSubstr("expected one of"));
}

}  // namespace
}  // namespace fuseblock
