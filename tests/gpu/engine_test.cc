// The engine on a real GPU: lanes with their streams and pinned staging, the same bits for a
// request in any batch and on any lane, and the CPU taking over.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "kernels/base/cuda.h"
#include "server/engine/buckets.h"
#include "server/engine/cuda_lane.h"
#include "server/engine/memory_plan.h"
#include "tests/unit/server/engine/engine_fixture.h"

namespace fuseblock {
namespace {

using testing::EngineTest;
using testing::Ids;
using testing::kVocabulary;
using testing::RandomRows;
using testing::RowTensor;

class EngineGpuTest : public EngineTest {
 protected:
  EngineGpuTest() {
    options_.devices = {kCuda0, kCpu};
    options_.lanes_per_device = 2;
    options_.batch_tokens_max = 1024;
    options_.request_tokens_max = 300;
    options_.queue_tokens_max = 100000;
    options_.make_lane = WithFaults(MakeLane, faults_);
    block_devices_ = {kCuda0, kCpu};
  }
  void SetUp() override {
    ASSERT_NE(CudaRuntime(), nullptr) << "these tests need a GPU: " << CudaUnavailableReason();
  }
  size_t FreeBytes() const {
    size_t free = 0, total = 0;
    EXPECT_EQ(CudaRuntime()->memory_info(0, &free, &total), 0);
    return free;
  }
};

TEST_F(EngineGpuTest, EveryKindOfBlockAnswersFromTheGpuWithItsPhases) {
  Start();
  for (const DType dtype : kFloatDTypes) {
    const std::string name = "m." + std::string(Name(dtype));
    const auto check = [&](const CallPtr& call) {
      const Outcome& outcome = call->Await();
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_EQ(outcome.device, kCuda0);
      EXPECT_GE(outcome.timings.h2d, 0);
      EXPECT_GT(outcome.timings.compute, 0);
      EXPECT_GE(outcome.timings.d2h, 0);
    };
    check(Send(Serve(name + ".mlp", BlockKind::kMlp, dtype), 5));
    check(Send(Serve(name + ".path", BlockKind::kFfnPath, dtype), 5));
    const auto norm = Serve(name + ".norm", BlockKind::kNormResidual, dtype);
    check(Send(MakeCall(norm, {RandomRows(dtype, 3, 1), RandomRows(dtype, 3, 2)})));
    const auto embed = Serve(name + ".embed", BlockKind::kEmbedding, dtype);
    const auto lookup = MakeCall(embed, {Ids<int32_t>({1, 0, kVocabulary - 1})});
    check(Send(lookup));
    lookup->ExpectRight();  // copies of rows: the CPU's bits
  }
}

// Each answer under load equals the one that the same request got alone.
TEST_F(EngineGpuTest, RaggedRequestsOfManyClientsHaveTheBitsOfEachAlone) {
  Start();
  const std::shared_ptr<ServedBlock> blocks[] = {Serve("m.path", BlockKind::kFfnPath),
                                                 Serve("m.norm", BlockKind::kNormResidual),
                                                 Serve("m.f32", BlockKind::kMlp, DType::kF32)};
  constexpr int kKinds = 40;
  std::vector<std::pair<std::shared_ptr<ServedBlock>, std::vector<RowTensor>>> requests;
  std::vector<std::string> alone;
  std::mt19937 random(5);
  for (int k = 0; k < kKinds; ++k) {
    const auto& block = blocks[k % 3];
    requests.push_back({block, {RandomRows(block->spec.dtype, random() % 301, random())}});
    alone.push_back(Send(MakeCall(requests[k].first, requests[k].second))->AwaitBytes());
  }
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < 16; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 mine(c);
      for (int i = 0; i < 100; ++i) {
        const size_t k = mine() % kKinds;
        const auto call = MakeCall(requests[k].first, requests[k].second);
        engine_->Submit(call->MakeRequest(call));
        ASSERT_EQ(call->AwaitBytes(), alone[k]) << "request " << k;
        call->ReleaseOutputs();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(faults_->launches(kCpu), 0);
  EXPECT_LT(metrics_.Value("fuseblock_batch_requests_count"), 16 * 100 + kKinds) << "none shared";
}

// Small batches run as graphs, padded to their bucket: with the bits of a direct launch.
TEST_F(EngineGpuTest, EveryBucketHasTheBitsOfADirectLaunch) {
  const auto answers = [&](int64_t graphs_max, const std::string& prefix) {
    options_.graphs_per_lane_max = graphs_max;
    options_.lanes_per_device = 1;
    Start();
    std::vector<std::string> bytes;
    std::vector<std::shared_ptr<ServedBlock>> blocks;
    for (const DType dtype : kFloatDTypes) {
      const std::string name = prefix + std::string(Name(dtype));
      const auto path = Serve(name + ".path", BlockKind::kFfnPath, dtype);
      const auto mlp = Serve(name + ".mlp", BlockKind::kMlp, dtype);
      blocks.insert(blocks.end(), {path, mlp});
      for (const int64_t tokens : {1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 50, 64, 65, 128, 129, 300}) {
        const RowTensor x = RandomRows(dtype, tokens, 7);
        bytes.push_back(Send(MakeCall(path, {x}))->AwaitBytes());
        bytes.push_back(Send(MakeCall(path, {x, RandomRows(dtype, tokens, 8)}))->AwaitBytes());
        bytes.push_back(Send(MakeCall(mlp, {x}))->AwaitBytes());
      }
      const double padded =
          metrics_.Value("fuseblock_padded_tokens_total{block=\"" + name + ".path\"}");
      EXPECT_EQ(padded, graphs_max == 0 ? 0 : 2 * (1 + 1 + 7 + 15 + 14 + 63)) << name;
    }
    const int64_t buckets = graphs_max == 0 ? 0 : kTokenBucketCount;
    EXPECT_EQ(engine_->Memory()[0].graph_count, 3 * (2 + 1) * buckets);
    return bytes;
  };
  const std::vector<std::string> direct = answers(0, "direct.");
  EXPECT_EQ(answers(1000, "graphs."), direct);
}

// Batches that are too large for the host to put where their graph takes them are copied around it.
TEST_F(EngineGpuTest, BatchesCopiedAroundTheirGraphsHaveTheBitsOfADirectLaunch) {
  constexpr int64_t kWide = 1024;  // of BF16, 32 rows are 64 KiB
  const auto answers = [&](int64_t graphs_max) {
    options_.graphs_per_lane_max = graphs_max;
    Start();
    const auto block =
        testing::MakeBlock("m.wide", BlockKind::kFfnPath, DType::kBF16, block_devices_, kWide);
    EXPECT_TRUE(engine_->Prepare(*block).ok());
    const int64_t of_a_lane = graphs_max == 0 ? 0 : 2 * kTokenBucketCount;
    EXPECT_EQ(engine_->Memory()[0].graph_count, options_.lanes_per_device * of_a_lane);
    std::vector<std::string> bytes;
    for (const int64_t tokens : {128, 1, 16, 3, 17, 32, 9, 33, 64, 65}) {
      const RowTensor x = RandomRows(DType::kBF16, tokens, 7, kWide);
      const RowTensor residual = RandomRows(DType::kBF16, tokens, 8, kWide);
      bytes.push_back(Send(MakeCall(block, {x}))->AwaitBytes());
      bytes.push_back(Send(MakeCall(block, {x, residual}))->AwaitBytes());
    }
    return bytes;
  };
  const std::vector<std::string> direct = answers(0);
  EXPECT_EQ(answers(1000), direct);
}

// A norm is one launch: a graph of it would only add padding.
TEST_F(EngineGpuTest, WhatIsOneLaunchAnywayIsNotCaptured) {
  Start();
  Send(Serve("m.norm", BlockKind::kNormResidual), 3)->Await();
  Send(MakeCall(Serve("m.embed", BlockKind::kEmbedding), {Ids<int64_t>({1, 2, 3})}))->Await();
  EXPECT_EQ(engine_->Memory()[0].graph_count, 0);
  EXPECT_EQ(metrics_.Value("fuseblock_padded_tokens_total{block=\"m.norm\"}"), 0);
}

TEST_F(EngineGpuTest, BlocksBeyondTheBoundAreLaunchedDirectly) {
  options_.lanes_per_device = 1;
  options_.graphs_per_lane_max = 3 * kTokenBucketCount;
  Start();
  const auto first = Serve("m.first", BlockKind::kMlp);
  auto path = Serve("m.path", BlockKind::kFfnPath);
  EXPECT_EQ(engine_->Memory()[0].graph_count, 3 * kTokenBucketCount);
  const auto beyond = Serve("m.beyond", BlockKind::kMlp);
  EXPECT_EQ(engine_->Memory()[0].graph_count, 3 * kTokenBucketCount);
  EXPECT_EQ(Send(beyond, 3)->AwaitBytes(), Send(first, 3)->AwaitBytes());
  path.reset();
  EXPECT_EQ(engine_->Memory()[0].graph_count, kTokenBucketCount) << "a graph goes with its block";
  const auto later = Serve("m.later", BlockKind::kMlp);
  EXPECT_EQ(engine_->Memory()[0].graph_count, 2 * kTokenBucketCount);
}

// Graphs hold addresses: those of a block stay good when the lane's memory grows for a larger one.
TEST_F(EngineGpuTest, GraphsStayGoodWhenLanesGrow) {
  Start();
  const auto mlp = Serve("m.mlp", BlockKind::kMlp);
  const std::string before = Send(mlp, 5)->AwaitBytes();
  const auto path = Serve("m.path", BlockKind::kFfnPath, DType::kF32);
  for (int i = 0; i < 20; ++i) {
    Send(path, 100, static_cast<uint32_t>(i))->Await();
    EXPECT_EQ(Send(mlp, 5)->AwaitBytes(), before);
  }
}

TEST_F(EngineGpuTest, TrafficAllocatesNothing) {
  Start();
  const std::shared_ptr<ServedBlock> blocks[] = {Serve("m.path", BlockKind::kFfnPath),
                                                 Serve("m.norm", BlockKind::kNormResidual),
                                                 Serve("m.mlp", BlockKind::kMlp)};
  const auto traffic = [&] {
    std::vector<CallPtr> calls;
    for (int i = 0; i < 300; ++i) {
      calls.push_back(Send(blocks[i % 3], i, static_cast<uint32_t>(i)));
    }
    for (const auto& call : calls) EXPECT_TRUE(call->Await().status.ok());
  };
  traffic();  // kernels are loaded at their first launch
  const int64_t allocations = Buffer::allocations();
  const size_t free = FreeBytes();
  traffic();
  EXPECT_EQ(Buffer::allocations(), allocations);
  EXPECT_EQ(FreeBytes(), free);
}

// While one lane's stream stands still in the middle of a batch, the other answers its own: as
// graphs and directly launched, in both directions.
TEST_F(EngineGpuTest, LanesRunAtTheSameTime) {
  const auto served = testing::MakeBlock("m.path", BlockKind::kFfnPath, DType::kBF16, {kCuda0});
  const Block* block = served->On(kCuda0);
  constexpr int64_t kRows = 8;
  constexpr size_t kBytes = kRows * testing::kHidden * 2;
  struct Side {
    std::unique_ptr<Lane> lane;
    Buffer in, out;
    LaneBatch batch;
    std::shared_ptr<BlockGraphs> graphs;
  };
  std::array<Side, 2> sides;
  const RowTensor x = RandomRows(DType::kBF16, kRows, 3);
  for (Side& side : sides) {
    side.lane = *CudaLane::Create(kCuda0);
    LaneBytes bytes{1 << 16, 1 << 16, block->WorkspaceBytes(kRows), 1 << 20};
    ASSERT_TRUE(side.lane->Reserve(bytes).ok());
    side.in = *Buffer::Allocate(MemoryKind::kPinned, kBytes);
    side.out = *Buffer::Allocate(MemoryKind::kPinned, kBytes);
    std::memcpy(side.in.data(), x.bytes.data(), kBytes);
    side.batch.block = block;
    side.batch.rows = kRows;
    side.batch.input_count = 2;
    side.batch.output_count = 1;
    side.batch.inputs[0] = ConstTensorView(side.in.data(), DType::kBF16, {kRows, testing::kHidden});
    side.batch.outputs[0] = TensorView(side.out.data(), DType::kBF16, {kRows, testing::kHidden});
    ASSERT_TRUE(side.lane->Capture(side.batch, &side.graphs).ok());
    ASSERT_NE(side.graphs, nullptr);
  }
  for (const bool as_graph : {false, true}) {
    for (Side& side : sides) side.batch.graphs = as_graph ? side.graphs.get() : nullptr;
    for (int held = 0; held < 2; ++held) {
      for (Side& side : sides) std::memset(side.out.data(), 0, kBytes);
      std::promise<void> gate;
      auto* stream = static_cast<CudaLane&>(*sides[held].lane).stream();
      ASSERT_EQ(
          CudaRuntime()->launch_host_function(
              0, stream, [](void* p) { static_cast<std::promise<void>*>(p)->get_future().wait(); },
              &gate),
          0);
      std::atomic<bool> done{false};
      std::thread waits([&] {
        LaneTimes times;
        EXPECT_TRUE(sides[held].lane->Run(sides[held].batch, &times).ok());
        done = true;
      });
      LaneTimes times;
      EXPECT_TRUE(sides[1 - held].lane->Run(sides[1 - held].batch, &times).ok());
      EXPECT_FALSE(done);
      gate.set_value();
      waits.join();
      EXPECT_EQ(std::memcmp(sides[0].out.data(), sides[1].out.data(), kBytes), 0);
    }
  }
}

TEST_F(EngineGpuTest, TheCpuTakesOverWithItsOwnBits) {
  options_.lanes_per_device = 1;
  Start();
  const auto path = Serve("m.path", BlockKind::kFfnPath);
  const auto running = Occupy(path, kCuda0);
  std::vector<CallPtr> queued;
  for (int i = 0; i < 20; ++i) queued.push_back(Send(path, i * 7, static_cast<uint32_t>(i)));
  faults_->Inject(kCuda0, Fault::kDeviceLost);
  faults_->Release(kCuda0);
  queued.push_back(running);
  for (const auto& call : queued) {
    call->ExpectRight();
    EXPECT_EQ(call->Await().device, kCpu);
  }
  EXPECT_EQ(faults_->launches(kCuda0), 1);
}

TEST_F(EngineGpuTest, MemoryComesBack) {
  Start();  // what the driver and cuBLAS keep for themselves comes first
  Send(Serve("m.path", BlockKind::kFfnPath), 300)->Await();
  Send(Serve("m.path", BlockKind::kFfnPath, DType::kF32), 300)->Await();
  engine_.reset();
  const size_t before = FreeBytes();
  for (int i = 0; i < 5; ++i) {
    Start();
    auto block = Serve("m.path", BlockKind::kFfnPath, i % 2 ? DType::kF32 : DType::kBF16);
    Send(block, 300)->Await();
    EXPECT_GT(engine_->Devices()[0].workspace_bytes, 0u);
    engine_.reset();
  }
  EXPECT_GE(FreeBytes() + (size_t{2} << 20), before);  // less than one page of the driver's pools
}

}  // namespace
}  // namespace fuseblock
