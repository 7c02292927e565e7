// The program itself: its flags and exit codes, serving over its own ports, and its ordered end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <memory>

#include "client/cpp/client.h"
#include "tests/integration/raw_client.h"
#include "tests/integration/server_fixture.h"

namespace fuseblock::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ServerTest, FlagsAndExitCodes) {
  EXPECT_EQ(RunServer({"--version"}).exit_code, 0);
  EXPECT_EQ(RunServer({"--help"}).exit_code, 0);
  Finished finished = RunServer({"--frobnicate"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.output, HasSubstr("--frobnicate"));
  finished = RunServer({"--set", "server.adress=x"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.output, HasSubstr("server.address"));
  const std::string file = folder_.Write("c.toml", "config_version = 1\n[log]\nlevel = \"loud\"\n");
  finished = RunServer({"--config", file, "--check-config"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.output, HasSubstr("c.toml:3: log.level"));
  finished = RunServer({"--print-config"});
  EXPECT_EQ(finished.exit_code, 0);
  const std::string printed = folder_.Write("printed.toml", finished.output);
  EXPECT_EQ(RunServer({"--config", printed, "--check-config"}).exit_code, 0);
  EXPECT_EQ(RunServer({"--config", printed, "--print-config"}).output, finished.output);
}

TEST_F(ServerTest, FailsWithOneWhenItCanNotServe) {
  // No checkpoint in the folder.
  Finished finished = RunServer(Arguments());
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.output, HasSubstr("models.m: "));
  model_.Write(folder_);
  finished = RunServer(Arguments({"--set", "devices=cuda:99"}));
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.output, HasSubstr("cuda:99"));
  ServerProcess first(Arguments());
  finished = RunServer(Arguments({"--set", "server.address=" + first.Address("grpc")}));
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.output, HasSubstr("cannot listen there"));
}

TEST_F(ServerTest, ServesDescribesAndCounts) {
  model_.Write(folder_);
  ServerProcess server(Arguments({"--set", "tenants.acme.max_queue_requests=9"}));
  const std::string address = server.Address("grpc"), http = server.Address("metrics");
  ASSERT_NE(server.AwaitLog("info ready"), "") << server.log();
  client::Client client(address);
  EXPECT_EQ(*client.Health(), client::HealthState::kServing);
  EXPECT_EQ(*client.Health("m.layers.0.mlp"), client::HealthState::kServing);
  EXPECT_EQ(client.Health("nobody").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(RunServer({"--set", "server.address=" + address, "--healthcheck"}).exit_code, 0);
  for (const int64_t tokens : {0, 1, 17}) {
    const auto answer = client.Run(Mlp(tokens));
    ASSERT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(BytesOf(answer->outputs[0]), Alone(tokens));
  }
  int status = 0;
  const std::string metrics = HttpGet(http, "/metrics", &status);
  EXPECT_EQ(status, 200);
  EXPECT_THAT(metrics, HasSubstr("fuseblock_requests_total{block=\"m.layers.0.mlp\",code=\"OK\","
                                 "rpc=\"RunBlock\"} 3"));
  EXPECT_THAT(metrics, HasSubstr("fuseblock_build_info{"));
  HttpGet(http, "/readyz", &status);
  EXPECT_EQ(status, 200);
  const std::string page = HttpGet(http, "/statusz", &status);
  EXPECT_EQ(status, 200);
  for (const char* text : {"<code>m.layers.0.mlp</code></td><td>mlp</td><td>FP32</td>",
                           "<span class=\"dim\">of 65,536</span>", "<td><code>acme</code></td>",
                           "<span class=\"dim\">of 9</span>", "<td>cpu</td><td>on the host</td>",
                           "1 lane \u00d7 (staging in "}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.log();
  EXPECT_EQ(RunServer({"--set", "server.address=" + address, "--healthcheck"}).exit_code, 1);
}

TEST_F(ServerTest, AUnixSocketServesToo) {
  model_.Write(folder_);
  const std::string address = "unix:" + folder_.File("socket");
  ServerProcess server(
      Arguments({"--set", "server.address=" + address, "--set", "metrics.address="}));
  ASSERT_NE(server.AwaitLog("info ready"), "") << server.log();
  client::Client client(address);
  const auto answer = client.Run(Mlp(4));
  ASSERT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(BytesOf(answer->outputs[0]), Alone(4));
  EXPECT_THAT(server.log(), Not(HasSubstr("service=metrics")));
  server.Signal(SIGINT);
  EXPECT_EQ(server.Wait(), 0) << server.log();
}

TEST_F(ServerTest, ASignalWhileLoadingEndsInOrder) {
  // Enough blocks that the load is still under way when its first line is there.
  model_.hidden = 256;
  model_.intermediate = 1024;
  model_.layers = 24;
  model_.Write(folder_);
  ServerProcess server(Arguments());
  ASSERT_NE(server.AwaitLog("info loading"), "") << server.log();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("drained"));
}

// A model whose requests take long enough to be queued, running and streaming when the signal
// comes.
class DrainTest : public ServerTest {
 protected:
  DrainTest() {
    model_.hidden = 256;
    model_.intermediate = 2048;
    model_.layers = 1;
    model_.Write(folder_);
  }
};

TEST_F(DrainTest, WhatIsQueuedRunningAndStreamingFinishes) {
  constexpr int kUnary = 12, kStreamed = 12;
  constexpr int64_t kTokens = 1024;
  // The grace is no measure of how fast a busy machine, or a sanitizer, computes.
  ServerProcess server(
      Arguments({"--set", "engine.lanes_per_device=1", "--set", "engine.cpu_threads=1", "--set",
                 "engine.max_batch_tokens=1024", "--set", "admission.max_request_tokens=1024",
                 "--set", "drain.grace_seconds=3600"}));
  const std::string http = server.Address("metrics");
  ASSERT_NE(server.AwaitLog("info ready"), "") << server.log();
  const std::string expected = Alone(kTokens);
  const client::Request request = Mlp(kTokens);
  client::Client client(server.Address("grpc"));
  std::vector<std::promise<absl::StatusOr<client::Answer>>> unary(kUnary), streamed(kStreamed);
  auto stream = client.OpenStream({}, [&](uint64_t id, absl::StatusOr<client::Answer> answer) {
    streamed[id].set_value(std::move(answer));
  });
  for (int i = 0; i < kUnary; ++i) {
    client.RunAsync(request, {}, [&unary, i](absl::StatusOr<client::Answer> answer) {
      unary[i].set_value(std::move(answer));
    });
  }
  for (int i = 0; i < kStreamed; ++i) stream->Send(static_cast<uint64_t>(i), request);
  // All have been admitted: answered or in flight.
  const auto admitted = [&] {
    int status = 0;
    const std::string text = HttpGet(http, "/metrics", &status);
    const char* answered = "fuseblock_requests_total{block=\"m.layers.0.mlp\",code=\"OK\",rpc=";
    return Metric(text, "fuseblock_inflight_requests") +
           std::max(0.0, Metric(text, std::string(answered) + "\"RunBlock\"}")) +
           std::max(0.0, Metric(text, std::string(answered) + "\"StreamBlocks\"}"));
  };
  while (admitted() < kUnary + kStreamed) {
  }
  server.Signal(SIGTERM);
  for (auto* promises : {&unary, &streamed}) {
    for (auto& promise : *promises) {
      const absl::StatusOr<client::Answer> answer = promise.get_future().get();
      EXPECT_EQ(answer.status(), absl::OkStatus()) << server.log();  // and await the others
      EXPECT_TRUE(answer.ok() && BytesOf(answer->outputs[0]) == expected);
    }
  }
  EXPECT_EQ(server.Wait(), 0) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("drained"));
  const absl::Status refused = client.Run(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
}

// Clients that asked and never read, that hold a stream open, that never said anything: none holds
// the drain past its limit.
TEST_F(DrainTest, StuckClientsDoNotHoldItPastItsLimit) {
  ServerProcess server(Arguments({"--set", "drain.grace_seconds=1"}));
  ASSERT_NE(server.AwaitLog("info ready"), "") << server.log();
  const std::string address = server.Address("grpc"), http = server.Address("metrics");
  const std::string run = "/fuseblock.v1.BlockService/RunBlock";
  const std::string stream = "/fuseblock.v1.BlockService/StreamBlocks";
  v1::RunBlockRequest request;
  request.set_block("m.embed");
  v1::Tensor* ids = request.add_inputs();
  ids->set_name("ids");
  ids->set_data_type(v1::DATA_TYPE_INT32);
  ids->add_shape(1000);
  ids->set_data(std::string(4000, '\0'));
  v1::StreamBlocksRequest streamed;
  *streamed.mutable_request() = request;

  const RawClient silent(address), silent_http(http), silent_admin(server.Address("admin"));
  const RawClient asked(address), asked_on_stream(address), holds_stream(address);
  asked.SendPreface();
  asked.SendCall(run, request.SerializeAsString());
  asked_on_stream.SendPreface();
  asked_on_stream.SendCall(stream, streamed.SerializeAsString());
  holds_stream.SendPreface();
  holds_stream.SendCall(stream);
  // Both are answered, and their answers lie where they are.
  const auto metric = [&](const std::string& sample) {
    int status = 0;
    return Metric(HttpGet(http, "/metrics", &status), sample);
  };
  const std::string answered = "fuseblock_requests_total{block=\"m.embed\",code=\"OK\",rpc=";
  while (metric(answered + "\"RunBlock\"}") < 1 || metric(answered + "\"StreamBlocks\"}") < 1) {
  }
  EXPECT_EQ(metric("fuseblock_inflight_requests"), 2);
  const RawClient asked_http(http);
  asked_http.Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("the time for the drain is over"));
}

TEST_F(DrainTest, ASecondSignalStopsAtOnce) {
  ServerProcess server(Arguments({"--set", "drain.notice_seconds=3600"}));
  ASSERT_NE(server.AwaitLog("info ready"), "") << server.log();
  server.Signal(SIGTERM);
  ASSERT_NE(server.AwaitLog("info stopping"), "") << server.log();
  // While it gives notice it answers, and health says that it stops.
  client::Client client(server.Address("grpc"));
  while (*client.Health() != client::HealthState::kNotServing) {
  }
  EXPECT_EQ(client.Run(Mlp(1)).status(), absl::OkStatus());
  const std::string address = "server.address=" + server.Address("grpc");
  EXPECT_EQ(RunServer({"--set", address, "--healthcheck"}).exit_code, 1);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 1) << server.log();
}

}  // namespace
}  // namespace fuseblock::testing
