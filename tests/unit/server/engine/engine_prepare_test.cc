// What a block's preparation takes: time to measure what it costs, and memory for its graphs, which
// is known only once they are captured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "server/engine/cuda_graphs.h"
#include "server/engine/memory_plan.h"
#include "tests/unit/server/engine/engine_fixture.h"
#include "tests/unit/server/engine/simulated_clock.h"

namespace fuseblock {
namespace {

using testing::EngineTest;
using testing::MakeBlock;
using testing::RandomRows;
using testing::SimulatedClock;

constexpr int64_t kGraphBytes = 1000;

// A simulated lane that captures, and tells when it runs. Of device memory it has what a GPU's has.
class CapturingLane final : public Lane {
 public:
  CapturingLane(std::unique_ptr<Lane> inner, std::function<void()> on_run)
      : inner_(std::move(inner)), on_run_(std::move(on_run)) {}
  Device device() const override { return inner_->device(); }
  MemoryKind staging() const override { return inner_->staging(); }
  const Block* BlockOf(const ServedBlock& block) const override { return inner_->BlockOf(block); }
  absl::Status Reserve(const LaneBytes& bytes) override {
    if (absl::Status s = inner_->Reserve(bytes); !s.ok()) return s;
    if (bytes.captured > reserved_.captured) {
      auto larger = Buffer::Allocate(MemoryKind::kHost, bytes.captured);
      if (!larger.ok()) return larger.status();
      if (captured_ != nullptr) captured_->Outgrow();
      captured_ = std::make_shared<GraphMemory>(*std::move(larger), nullptr, totals_);
    }
    reserved_ = Larger(reserved_, bytes);
    return absl::OkStatus();
  }
  size_t device_bytes() const override {
    if (device().type == DeviceType::kCpu) return inner_->device_bytes();
    return reserved_.inputs + reserved_.outputs + reserved_.workspace + reserved_.captured;
  }
  size_t host_bytes() const override { return device().type == DeviceType::kCpu ? 0 : 4096; }
  absl::Status Capture(const LaneBatch& batch, std::shared_ptr<BlockGraphs>* graphs) override {
    if (device().type == DeviceType::kCpu) return absl::OkStatus();
    if (*graphs == nullptr) *graphs = std::make_shared<BlockGraphs>(device(), captured_, totals_);
    (*graphs)->Add(batch.form, BucketOf(batch.rows), nullptr, kGraphBytes);
    return absl::OkStatus();
  }
  GraphCount graphs() const override { return totals_->sum(); }
  void CountGraphsIn(MemoryGauge* gauge) override { totals_->CountIn(gauge); }
  absl::Status Run(const LaneBatch& batch, LaneTimes* times) override {
    on_run_();
    return inner_->Run(batch, times);
  }

 private:
  const std::unique_ptr<Lane> inner_;
  const std::function<void()> on_run_;
  const std::shared_ptr<GraphTotals> totals_ = std::make_shared<GraphTotals>();
  LaneBytes reserved_;
  std::shared_ptr<GraphMemory> captured_;
};

class EnginePrepareTest : public EngineTest {
 protected:
  EnginePrepareTest() {
    options_.devices = {kCuda0, kCpu};
    options_.clock = &clock_;
    options_.make_lane = [this, simulated = SimulatedDevices()](
                             Device device, int threads) -> absl::StatusOr<std::unique_ptr<Lane>> {
      auto lane = simulated(device, threads);
      if (!lane.ok()) return lane;
      return std::make_unique<CapturingLane>(*std::move(lane), [this] { clock_.Advance(run_); });
    };
  }
  ~EnginePrepareTest() override { engine_.reset(); }  // before the clock

  // Of cuda:0.
  double Reserved(const std::string& pool) {
    return metrics_.Value("fuseblock_memory_bytes{device=\"cuda:0\",pool=\"" + pool +
                          "\",state=\"reserved\"}");
  }
  // Weights have a metric of their own.
  void ExpectMetricsSayWhatThePlanSays() {
    const DeviceMemory memory = engine_->Memory()[0];
    EXPECT_EQ(Reserved("graphs"), memory.graphs);
    EXPECT_GE(memory.staging_in, 4096);
    EXPECT_EQ(Reserved("staging_in"), memory.lanes * memory.staging_in);
    EXPECT_EQ(Reserved("workspace") + Reserved("graphs"), memory.DeviceBytes() - memory.weights);
  }

  SimulatedClock clock_;
  absl::Duration run_;  // how long each takes
};

// What is known from the load is enough to refuse, though nothing has run yet.
TEST_F(EngineTest, CostsAreMeasuredWhenABlockIsPrepared) {
  measure_max_ = absl::Minutes(1);
  options_.batch_tokens_max = 1024;
  options_.request_tokens_max = 1000;
  Start();
  const auto path = Serve("m.path", BlockKind::kFfnPath);
  const int launches = faults_->launches(kCpu);
  EXPECT_EQ(launches, 6 * 3) << "1, 4, 16, ... 1024 tokens";
  const auto call = MakeCall(path, {RandomRows(DType::kBF16, 1000, 1)});
  call->deadline = absl::Now() + absl::Microseconds(10);
  const Reason reason = Send(call)->AwaitRefusal();
  EXPECT_TRUE(reason == Reason::kDeadlineInfeasible || reason == Reason::kExpired);
  EXPECT_EQ(faults_->launches(kCpu), launches);
  Send(path, 1000)->ExpectRight();
  EXPECT_EQ(metrics_.Value("fuseblock_batch_tokens_count"), 1) << "measuring is no traffic";
}

// No run begins after the device's half of the time is over.
TEST_F(EnginePrepareTest, DevicesShareTheTimeForMeasuring) {
  run_ = absl::Milliseconds(1);
  Start();
  for (const absl::Duration all : {absl::ZeroDuration(), absl::Milliseconds(1),
                                   absl::Milliseconds(4), absl::Milliseconds(11)}) {
    const absl::Time begin = clock_.Now();
    ASSERT_EQ(engine_->Prepare(*MakeBlock("m.mlp", BlockKind::kMlp), {}, all), absl::OkStatus());
    const absl::Duration took = clock_.Now() - begin;
    EXPECT_LE(took, all + 2 * run_) << all;
    EXPECT_EQ(took > absl::ZeroDuration(), all > absl::ZeroDuration()) << all;
  }
}

// Graphs make small batches faster and nothing else: for want of room for them no load fails, and
// none of them stays where the sum would be more than may be used.
TEST_F(EnginePrepareTest, GraphsThatDoNotFitAreDoneWithout) {
  Start();
  const auto mlp = Serve("m.mlp", BlockKind::kMlp);
  const DeviceMemory first = engine_->Memory()[0];
  ASSERT_EQ(first.graphs, first.graph_count * kGraphBytes);
  ASSERT_GT(first.graph_count, 0);
  const int64_t without = first.DeviceBytes() - first.graphs;

  for (const int64_t room : {first.graphs, first.graphs - 1, int64_t{0}}) {
    SCOPED_TRACE(room);
    options_.device_bytes_max = without + room;
    Start();
    const auto block = Serve("m.mlp", BlockKind::kMlp);
    const DeviceMemory memory = engine_->Memory()[0];
    EXPECT_EQ(memory.graphs, room == first.graphs ? first.graphs : 0);
    EXPECT_LE(memory.DeviceBytes(), memory.device_bytes_max);
    Send(block, 3)->ExpectRight();
  }
}

// Also of memory that a lane outgrew and only an older block's graphs still work on.
TEST_F(EnginePrepareTest, MetricsSayWhatThePlanSays) {
  options_.lanes_per_device = 2;
  Start();
  ExpectMetricsSayWhatThePlanSays();
  auto norm = Serve("m.norm", BlockKind::kNormResidual);
  ExpectMetricsSayWhatThePlanSays();
  auto path = Serve("m.path", BlockKind::kFfnPath);
  const DeviceMemory both = engine_->Memory()[0];
  EXPECT_GT(both.graphs, both.graph_count * kGraphBytes);
  ExpectMetricsSayWhatThePlanSays();
  norm.reset();
  const DeviceMemory one = engine_->Memory()[0];
  EXPECT_EQ(one.graphs, one.graph_count * kGraphBytes);
  ExpectMetricsSayWhatThePlanSays();
  path.reset();
  EXPECT_EQ(Reserved("graphs"), 0);
  ExpectMetricsSayWhatThePlanSays();
}

TEST(GraphMemoryTest, CountsAsTheGraphsOnceTheLaneHasLarger) {
  const auto totals = std::make_shared<GraphTotals>();
  auto memory =
      std::make_shared<GraphMemory>(*Buffer::Allocate(MemoryKind::kHost, 4096), nullptr, totals);
  auto graphs = std::make_shared<BlockGraphs>(Device{}, memory, totals);
  EXPECT_EQ(totals->sum().bytes, 0) << "it is the lane's";
  memory->Outgrow();
  memory.reset();
  EXPECT_EQ(totals->sum().bytes, 4096);
  graphs.reset();
  EXPECT_EQ(totals->sum().bytes, 0);
}

}  // namespace
}  // namespace fuseblock
