// The engine on a real GPU: lanes with their streams and pinned staging, the same bits for a
// request in any batch and on any lane, and the CPU taking over.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "kernels/base/cuda.h"
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
      EXPECT_GT(outcome.timings.h2d, 0);
      EXPECT_GT(outcome.timings.compute, 0);
      EXPECT_GT(outcome.timings.d2h, 0);
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
