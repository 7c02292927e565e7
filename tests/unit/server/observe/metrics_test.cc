#include "server/observe/metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace fuseblock {
namespace {

// The text's series names and labels, without their values.
std::set<std::string> Series(const std::string& text) {
  std::set<std::string> series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != '#') series.insert(line.substr(0, line.rfind(' ')));
  }
  return series;
}

void UseEverything(Metrics& metrics) {
  metrics.SetBuildInfo({"0.1.0", "abc", "none", "AVX3_SPR"});
  for (BlockMetrics* block : {metrics.Block("m.layers.0.mlp"), metrics.UnknownBlock()}) {
    for (const Rpc rpc : {Rpc::kRunBlock, Rpc::kStreamBlocks}) {
      block->ObserveRequest(rpc, absl::OkStatus(), absl::Milliseconds(1));
      block->ObserveRequest(rpc, MakeError(Reason::kQueueFull, ""), absl::Microseconds(20));
    }
    block->ObserveBytes(1000, 2000);
    for (int phase = 0; phase < kPhases; ++phase) {
      block->ObservePhase(static_cast<Phase>(phase), absl::Microseconds(3));
    }
    for (const ReasonTraits& traits : AllReasons()) block->CountShed(traits.reason);
    for (int cause = 0; cause < kFallbackCauses; ++cause) {
      block->CountFallback(static_cast<FallbackCause>(cause), 2);
    }
    block->ObserveBatch(3, 50, 14);
    for (int result = 0; result < kShadowResults; ++result) {
      block->CountShadow(static_cast<ShadowResult>(result));
    }
    block->ObserveShadow(-1);
    block->ObserveShadow(3);
    block->AddWeightBytes({}, 1 << 20);
  }
  metrics.CountError(Reason::kUnauthenticated);
  metrics.SetQueue(5, 500);
  metrics.SetInflight(2);
  metrics.SetDeviceHealthy({}, true);
  metrics.Lane({}, 0)->ObserveBatch(absl::Milliseconds(250));
  for (int pool = 0; pool < kMemoryPools; ++pool) {
    MemoryGauge* gauge = metrics.Memory({}, static_cast<MemoryPool>(pool));
    gauge->AddReserved(100);
    gauge->AddUsed(10);
  }
}

// A rate over a series that begins with its first event misses it.
TEST(Metrics, WhatADeviceMaySufferIsCountedFromZero) {
  Metrics metrics;
  metrics.SetDeviceHealthy({}, true);
  const std::string text = metrics.Expose();
  for (int c = 0; c < kFallbackCauses; ++c) {
    const std::string cause(Name(static_cast<FallbackCause>(c)));
    for (const std::string& series :
         {std::string("device_quarantines_total"), std::string("device_recoveries_total")}) {
      EXPECT_NE(text.find(series + "{cause=\"" + cause + "\",device=\"cpu\"} 0\n"),
                std::string::npos)
          << series << " " << cause;
    }
  }
}

TEST(Metrics, EverySeriesCountsWhatItIsTold) {
  Metrics metrics;
  UseEverything(metrics);
  const std::string block = "block=\"m.layers.0.mlp\"";
  const struct {
    std::string sample;
    double value;
  } kExpected[] = {
      {"requests_total{" + block + ",code=\"OK\",rpc=\"RunBlock\"}", 1},
      {"requests_total{" + block + ",code=\"RESOURCE_EXHAUSTED\",rpc=\"StreamBlocks\"}", 1},
      {"request_duration_seconds_count{" + block + ",rpc=\"RunBlock\"}", 2},
      {"request_duration_seconds_sum{" + block + ",rpc=\"RunBlock\"}", 0.00102},
      {"request_duration_seconds_bucket{" + block + ",rpc=\"RunBlock\",le=\"2e-05\"}", 1},
      {"phase_duration_seconds_count{" + block + ",phase=\"encode\"}", 1},
      {"phase_duration_seconds_bucket{" + block + ",phase=\"queue\",le=\"1e-05\"}", 1},
      {"shed_total{" + block + ",cause=\"queue_full\"}", 1},
      {"shed_total{" + block + ",cause=\"bad_tensor\"}", 0},
      {"fallback_total{" + block + ",cause=\"device_lost\"}", 2},
      {"batch_tokens_sum", 100},
      {"batch_requests_count", 2},
      {"useful_tokens_total{" + block + "}", 50},
      {"padded_tokens_total{" + block + "}", 14},
      {"shadow_total{" + block + ",result=\"equal\"}", 2},
      {"shadow_total{" + block + ",result=\"different\"}", 2},
      {"shadow_total{" + block + ",result=\"failed\"}", 1},
      {"shadow_total{" + block + ",result=\"skipped\"}", 1},
      {"shadow_difference_ulp_bucket{" + block + ",le=\"0\"}", 1},
      {"shadow_difference_ulp_bucket{" + block + ",le=\"4\"}", 2},
      {"lane_batches_total{device=\"cpu\",lane=\"0\"}", 1},
      {"lane_busy_seconds_total{device=\"cpu\",lane=\"0\"}", 0.25},
      {"request_bytes_sum", 2000},
      {"response_bytes_sum", 4000},
      {"errors_total{category=\"queue_full\"}", 4},
      {"errors_total{category=\"unauthenticated\"}", 1},
      {"queue_tokens", 5},
      {"queue_bytes", 500},
      {"inflight_requests", 2},
      {"device_healthy{device=\"cpu\"}", 1},
      {"memory_bytes{device=\"cpu\",pool=\"staging_in\",state=\"reserved\"}", 100},
      {"memory_bytes{device=\"cpu\",pool=\"workspace\",state=\"used\"}", 10},
      {"weights_bytes{" + block + ",device=\"cpu\"}", 1 << 20},
      {"build_info{commit=\"abc\",cuda=\"none\",isa=\"AVX3_SPR\",version=\"0.1.0\"}", 1},
  };
  for (const auto& [sample, value] : kExpected) {
    EXPECT_DOUBLE_EQ(metrics.Value("fuseblock_" + sample), value) << sample;
  }
}

TEST(Metrics, SumsABlocksRequestsOverRpcsAndCodes) {
  Metrics metrics;
  BlockMetrics* block = metrics.Block("m.a");
  EXPECT_EQ(block->RequestTotals().requests, 0);
  for (const Rpc rpc : {Rpc::kRunBlock, Rpc::kStreamBlocks}) {
    block->ObserveRequest(rpc, absl::OkStatus(), absl::Milliseconds(1));
    block->ObserveRequest(rpc, MakeError(Reason::kExpired, ""), absl::Milliseconds(1));
    block->ObserveRequest(rpc, MakeError(Reason::kQueueFull, ""), absl::Milliseconds(1));
  }
  EXPECT_EQ(block->RequestTotals().requests, 6);
  EXPECT_EQ(block->RequestTotals().errors, 4);
}

TEST(Metrics, NamesABlockOnceAndKeepsItsSeries) {
  Metrics metrics;
  BlockMetrics* first = metrics.Block("m.a");
  first->ObserveRequest(Rpc::kRunBlock, absl::OkStatus(), absl::Milliseconds(1));
  EXPECT_EQ(metrics.Block("m.a"), first);
  EXPECT_NE(metrics.Block("m.b"), first);
  EXPECT_EQ(metrics.UnknownBlock(), metrics.UnknownBlock());
}

// However many names clients make up, they are one label.
TEST(Metrics, UnknownBlocksAddNoSeries) {
  Metrics metrics;
  UseEverything(metrics);
  const std::set<std::string> before = Series(metrics.Expose());
  for (int i = 0; i < 1000; ++i) {
    metrics.UnknownBlock()->ObserveRequest(
        Rpc::kRunBlock, MakeError(Reason::kQueueFull, std::to_string(i)), absl::Milliseconds(1));
  }
  EXPECT_EQ(Series(metrics.Expose()), before);
}

TEST(Metrics, ThreadsThatMeetOnANewSeriesShareIt) {
  Metrics metrics;
  BlockMetrics* block = metrics.Block("m.a");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        block->ObservePhase(static_cast<Phase>(i % kPhases), absl::Microseconds(i));
        block->ObserveRequest(Rpc::kStreamBlocks, MakeError(Reason::kExpired, ""),
                              absl::Microseconds(i));
        if (i % 100 == 0) metrics.Expose();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.Value("fuseblock_requests_total{block=\"m.a\",code=\"DEADLINE_EXCEEDED\",rpc="
                          "\"StreamBlocks\"}"),
            4000);
}

// Prometheus' own linter, of the distribution's package prometheus.
TEST(Metrics, PassesPromtool) {
  Metrics metrics(FAKE_NVML);
  UseEverything(metrics);
  const auto file = std::filesystem::temp_directory_path() /
                    ("fuseblock_metrics_" + std::to_string(getpid()) + ".txt");
  std::ofstream(file) << metrics.Expose();
  const std::string command = "promtool check metrics < " + file.string() + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string said;
  char buffer[4096];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) said += buffer;
  EXPECT_EQ(pclose(pipe), 0) << said;
  EXPECT_EQ(said, "");
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace fuseblock
