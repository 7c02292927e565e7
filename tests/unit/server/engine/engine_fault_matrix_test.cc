// Each fault, under each policy, with one GPU and with two: mixed traffic of several clients goes
// on while it happens and after it. No answer is wrong, none is missing, none comes later than the
// watchdog allows, and the counters say what the clients saw. Time is simulated; the evidence
// ledger's record `faults` is made of this test's properties.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/unit/server/engine/engine_fixture.h"
#include "tests/unit/server/engine/simulated_clock.h"

namespace fuseblock {
namespace {

using testing::Call;
using testing::EngineTest;
using testing::RandomRows;
using testing::RowTensor;
using testing::SimulatedClock;

constexpr absl::Duration kWatchdog = absl::Seconds(10);
constexpr absl::Duration kSlow = absl::Seconds(5);  // less than that
constexpr int kClients = 4;
constexpr int kRequests = 40;  // of each client, in each of three phases

struct FaultCase {
  const char* name;
  Fault fault;
  int launches;       // that it hits
  bool quarantines;   // the device
  bool recovers;      // once the fault is over
  const char* cause;  // of the fallback
  Reason refusal;     // of what it hits, without a fallback
};

// One more refusal of memory than the health asks for in a row: one of them may be told late.
const FaultCase kFaults[] = {
    {"launch_failure", Fault::kLaunchFailure, 1, true, true, "launch_failed", Reason::kDeviceLost},
    {"sticky_error", Fault::kDeviceLost, 1, true, false, "device_lost", Reason::kDeviceLost},
    {"hang", Fault::kHang, 1, true, true, "hung", Reason::kDeviceLost},
    {"allocation_failure", Fault::kOutOfMemory, 4, true, true, "out_of_memory", Reason::kMemory},
    {"slow_copy", Fault::kSlowCopy, 1, false, true, "", Reason::kInternal},
};

// Bits of a GPU that are not the CPU's, so that an answer shows who computed it: of BF16 outputs
// the last bit of every value is turned over.
void TurnOver(void* data, size_t bytes) {
  auto* values = static_cast<uint8_t*>(data);
  for (size_t i = 0; i < bytes; i += 2) values[i] ^= 1;
}

class OwnBitsLane final : public Lane {
 public:
  explicit OwnBitsLane(std::unique_ptr<Lane> inner) : inner_(std::move(inner)) {}
  Device device() const override { return inner_->device(); }
  MemoryKind staging() const override { return inner_->staging(); }
  const Block* BlockOf(const ServedBlock& block) const override { return inner_->BlockOf(block); }
  absl::Status Reserve(const LaneBytes& bytes) override { return inner_->Reserve(bytes); }
  size_t device_bytes() const override { return inner_->device_bytes(); }
  absl::Status Run(const LaneBatch& batch, LaneTimes* times) override {
    absl::Status status = inner_->Run(batch, times);
    for (const TensorView& output : batch.outputs) {
      if (output.data != nullptr && output.dtype == DType::kBF16) {
        TurnOver(output.data, BytesOf(output));
      }
    }
    return status;
  }

 private:
  const std::unique_ptr<Lane> inner_;
};

absl::StatusOr<std::unique_ptr<Lane>> MakeOwnBitsLane(Device device, int threads) {
  static const LaneFactory simulated = SimulatedDevices();
  auto lane = simulated(device, threads);
  if (!lane.ok() || device.type == DeviceType::kCpu) return lane;
  return std::make_unique<OwnBitsLane>(*std::move(lane));
}

// What clients saw.
struct Seen {
  int sent = 0, right = 0, wrong = 0, refused = 0;
  int by_cpu = 0;
  std::map<std::string, int> shed;  // by cause

  void Add(const Seen& other) {
    sent += other.sent;
    right += other.right;
    wrong += other.wrong;
    refused += other.refused;
    by_cpu += other.by_cpu;
    for (const auto& [cause, count] : other.shed) shed[cause] += count;
  }
};

using Parameters = std::tuple<int, FallbackPolicy, int>;  // fault, policy, GPUs

class EngineFaultMatrixTest : public EngineTest, public ::testing::WithParamInterface<Parameters> {
 protected:
  EngineFaultMatrixTest() {
    faults_ = std::make_shared<Faults>(clock_);
    options_.make_lane = WithFaults(MakeOwnBitsLane, faults_);
    options_.lanes_per_device = 2;
    options_.queue_tokens_max = 100000;
    options_.watchdog = kWatchdog;
    options_.clock = &clock_;
    options_.fallback = std::get<1>(GetParam());
    options_.devices = {kCuda0};
    if (std::get<2>(GetParam()) == 2) options_.devices.push_back(kCuda1);
    options_.devices.push_back(kCpu);
  }
  ~EngineFaultMatrixTest() override {
    for (const Device device : options_.devices) faults_->Release(device);
    engine_.reset();
    for (const Device device : options_.devices) faults_->AwaitNoneHeld(device);  // by the clock
  }

  const FaultCase& fault() const { return kFaults[std::get<0>(GetParam())]; }
  bool refuses() const { return options_.fallback == FallbackPolicy::kRefuse; }

  // Whether the call was answered with the bits of the device that it names.
  static bool Right(Call& call, const ServedBlock& block, const std::vector<RowTensor>& inputs) {
    const auto alone = RunOnCpu(*block.On(Device{}), inputs);
    EXPECT_TRUE(alone.ok()) << alone.status();
    std::string expected;
    for (const RowTensor& output : *alone) expected += output.bytes;
    if (call.Await().device.type == DeviceType::kCuda) TurnOver(expected.data(), expected.size());
    return call.AwaitBytes() == expected;
  }

  // Requests of all sizes for both blocks, several in flight.
  Seen RunClient(uint32_t seed) {
    std::mt19937 random(seed);
    Seen seen;
    struct Sent {
      CallPtr call;
      std::shared_ptr<ServedBlock> block;
      std::vector<RowTensor> inputs;
    };
    std::vector<Sent> sent;
    for (int i = 0; i < kRequests; ++i) {
      const auto& block = random() % 2 ? path_ : norm_;
      std::vector<RowTensor> inputs = {RandomRows(DType::kBF16, 1 + random() % 40, random())};
      if (random() % 2) inputs.push_back(RandomRows(DType::kBF16, inputs[0].dims[0], random()));
      const CallPtr call = MakeCall(block, inputs);
      call->tenant = std::string(1, static_cast<char>('a' + seed % 3));
      engine_->Submit(call->MakeRequest(call));
      sent.push_back({call, block, std::move(inputs)});
      if (i % 4 == 3) sent[random() % sent.size()].call->Await();
    }
    for (const Sent& one : sent) {
      const Outcome& outcome = one.call->Await();
      ++seen.sent;
      EXPECT_EQ(one.call->answers(), 1);
      if (!outcome.status.ok()) {
        ++seen.refused;
        ++seen.shed[std::string(Traits(ReasonOf(outcome.status)).cause)];
      } else if (Right(*one.call, *one.block, one.inputs)) {
        ++seen.right;
        seen.by_cpu += outcome.device == kCpu;
      } else {
        ++seen.wrong;
      }
    }
    return seen;
  }

  Seen RunPhase(const std::function<void()>& meanwhile) {
    Seen seen[kClients];
    std::vector<std::thread> clients;
    for (int c = 0; c < kClients; ++c) {
      clients.emplace_back([&, c, seed = ++seed_] { seen[c] = RunClient(seed); });
    }
    meanwhile();
    for (std::thread& client : clients) client.join();
    Seen all;
    for (const Seen& one : seen) all.Add(one);
    return all;
  }

  // The next launches on the first GPU, which is asked first.
  void Arm() {
    struck_ = clock_.Now();
    faults_->Inject(kCuda0, fault().fault, fault().launches, kSlow);
  }
  // While clients send: lets pass what time the fault takes.
  void Strike() {
    if (fault().fault != Fault::kHang && fault().fault != Fault::kSlowCopy) return;
    faults_->AwaitHeld(kCuda0, 1);
    clock_.Advance(fault().fault == Fault::kHang ? kWatchdog : kSlow);
  }

  // Ends the fault, and lets time pass until the GPUs are back. Returns how long that took. (What
  // else ran when time jumped was overdue, too.)
  absl::Duration Recover() {
    faults_->Inject(kCuda0, Fault::kNone, 0);
    faults_->Release(kCuda0);
    while (engine_->HasStuckLane()) std::this_thread::yield();
    for (bool all = false; !all;) {
      all = true;
      for (const DeviceStatus& device : engine_->Devices()) {
        if (device.health == DeviceHealth::kHealthy) continue;
        all = false;
        if (device.until_probe == absl::InfiniteDuration()) continue;  // it is being probed
        clock_.Advance(std::max(device.until_probe, absl::ZeroDuration()));
      }
      std::this_thread::yield();
    }
    return clock_.Now() - struck_;
  }

  double Fallbacks(const std::string& cause) {
    double sum = 0;
    for (const char* block : {"m.path", "m.norm"}) {
      sum += metrics_.Value(std::string("fuseblock_fallback_total{block=\"") + block +
                            "\",cause=\"" + cause + "\"}");
    }
    return sum;
  }

  SimulatedClock clock_;
  std::shared_ptr<ServedBlock> path_, norm_;
  absl::Time struck_;
  uint32_t seed_ = 0;
};

TEST_P(EngineFaultMatrixTest, NothingIsWrongAndNothingIsLost) {
  Start();
  path_ = Serve("m.path", BlockKind::kFfnPath);
  norm_ = Serve("m.norm", BlockKind::kNormResidual);
  const bool alone = options_.devices.size() == 2;

  Seen seen = RunPhase([] {});
  EXPECT_EQ(seen.right, kClients * kRequests);
  EXPECT_EQ(seen.by_cpu, 0);
  Arm();
  seen.Add(RunPhase([&] { Strike(); }));
  EXPECT_EQ(engine_->Devices()[0].health != DeviceHealth::kHealthy, fault().quarantines);
  double recovery = -1;
  if (fault().recovers) recovery = absl::ToDoubleSeconds(Recover());
  const Seen after = RunPhase([] {});
  seen.Add(after);

  EXPECT_EQ(seen.wrong, 0);
  EXPECT_EQ(seen.right + seen.refused, 3 * kClients * kRequests);
  EXPECT_EQ(refuses() ? seen.by_cpu : seen.refused, 0);
  if (fault().recovers) {
    EXPECT_EQ(after.right - after.by_cpu, kClients * kRequests);
  }
  if (!fault().recovers && alone) {
    EXPECT_EQ(refuses() ? after.refused : after.by_cpu, kClients * kRequests);
  }

  // The counters, against what the clients saw.
  double fallbacks = 0, sheds = 0;
  for (int cause = 0; cause < kFallbackCauses; ++cause) {
    fallbacks += Fallbacks(std::string(Name(static_cast<FallbackCause>(cause))));
  }
  EXPECT_EQ(fallbacks, seen.by_cpu);
  for (const ReasonTraits& traits : AllReasons()) {
    const std::string cause(traits.cause);
    EXPECT_EQ(Shed("m.path", cause) + Shed("m.norm", cause), seen.shed[cause]) << cause;
    sheds += seen.shed[cause];
  }
  EXPECT_EQ(sheds, seen.refused);
  if (fault().quarantines) {
    const std::string refusal(Traits(fault().refusal).cause);
    EXPECT_GE(refuses() ? seen.shed[refusal] : Fallbacks(fault().cause), 1);
  }
  ExpectNothingHeld();

  RecordProperty("fault", fault().name);
  RecordProperty("policy", refuses() ? "refuse" : "cpu");
  RecordProperty("gpus", static_cast<int>(options_.devices.size()) - 1);
  RecordProperty("sent", seen.sent);
  RecordProperty("right", seen.right);
  RecordProperty("refused", seen.refused);
  RecordProperty("wrong", seen.wrong);
  RecordProperty("lost", seen.sent - seen.right - seen.refused - seen.wrong);
  RecordProperty("by_cpu", seen.by_cpu);
  RecordProperty("recovery_s", std::to_string(recovery));
}

std::string NameOf(const ::testing::TestParamInfo<Parameters>& test) {
  const auto [fault, policy, gpus] = test.param;
  return std::string(kFaults[fault].name) +
         (policy == FallbackPolicy::kCpu ? "_cpu_" : "_refuse_") + std::to_string(gpus) + "_gpus";
}

INSTANTIATE_TEST_SUITE_P(
    Faults, EngineFaultMatrixTest,
    ::testing::Combine(::testing::Range(0, static_cast<int>(std::size(kFaults))),
                       ::testing::Values(FallbackPolicy::kCpu, FallbackPolicy::kRefuse),
                       ::testing::Values(1, 2)),
    NameOf);

}  // namespace
}  // namespace fuseblock
