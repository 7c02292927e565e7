// Real blocks with small random weights, and calls to an engine that record what came of them.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "server/engine/faulty_lane.h"
#include "server/engine/simulated_lane.h"
#include "server/observe/metrics.h"
#include "server/reason.h"
#include "tests/support/host_tensor.h"
#include "tests/support/run_block.h"

namespace fuseblock::testing {

inline constexpr int64_t kHidden = 24;
inline constexpr int64_t kIntermediate = 40;
inline constexpr int64_t kVocabulary = 50;

// The block under that name, on these devices. All blocks of a kind and dtype have the same
// weights.
inline std::shared_ptr<ServedBlock> MakeBlock(const std::string& name, BlockKind kind,
                                              DType dtype = DType::kBF16,
                                              const std::vector<Device>& devices = {Device{}},
                                              int64_t hidden = kHidden) {
  auto served = std::make_shared<ServedBlock>();
  served->name = name;
  BlockSpec& spec = served->spec;
  spec.kind = kind;
  spec.dtype = dtype;
  spec.hidden = hidden;
  const bool products = kind == BlockKind::kMlp || kind == BlockKind::kFfnPath;
  spec.intermediate = products ? kIntermediate : 0;
  spec.vocabulary = kind == BlockKind::kEmbedding ? kVocabulary : 0;
  const HostTensor norm = NormalTensor(dtype, {hidden}, 1);
  const HostTensor gate = NormalTensor(dtype, {kIntermediate, hidden}, 2, 0.2f);
  const HostTensor up = NormalTensor(dtype, {kIntermediate, hidden}, 3, 0.2f);
  const HostTensor down = NormalTensor(dtype, {hidden, kIntermediate}, 4, 0.2f);
  // Never freed: a table may be used where it lies.
  static const auto* tables =
      new std::array<HostTensor, 3>{NormalTensor(DType::kF32, {kVocabulary, kHidden}, 5),
                                    NormalTensor(DType::kF16, {kVocabulary, kHidden}, 5),
                                    NormalTensor(DType::kBF16, {kVocabulary, kHidden}, 5)};
  BlockWeights weights;
  if (kind == BlockKind::kNormResidual || kind == BlockKind::kFfnPath) weights.norm = norm.view();
  if (products) {
    weights.gate = gate.view();
    weights.up = up.view();
    weights.down = down.view();
  }
  if (kind == BlockKind::kEmbedding) {
    weights.table = (*tables)[static_cast<size_t>(dtype)].view();
  }
  for (const Device device : devices) {
    auto block = Block::Create(spec, weights, device);
    EXPECT_TRUE(block.ok()) << block.status();
    if (block.ok()) served->blocks.push_back(*std::move(block));
  }
  served->inputs = Block::Inputs(spec);
  served->outputs = Block::Outputs(spec);
  return served;
}

inline RowTensor RandomRows(DType dtype, int64_t rows, uint32_t seed, int64_t hidden = kHidden) {
  const HostTensor tensor = NormalTensor(dtype, {rows, hidden}, seed);
  RowTensor out{dtype, {rows, hidden}, ""};
  if (rows > 0) {
    out.bytes.assign(reinterpret_cast<const char*>(tensor.row(0)),
                     static_cast<size_t>(rows) * tensor.row_bytes());
  }
  return out;
}

template <typename Id>
RowTensor Ids(const std::vector<Id>& ids) {
  RowTensor out{
      sizeof(Id) == 8 ? DType::kI64 : DType::kI32, {static_cast<int64_t>(ids.size())}, ""};
  out.bytes.assign(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id));
  return out;
}

// One request and what became of it.
class Call {
 public:
  Call(std::shared_ptr<const ServedBlock> block, std::vector<RowTensor> inputs)
      : block_(std::move(block)), inputs_(std::move(inputs)) {}

  absl::Time deadline = absl::InfiniteFuture();
  std::string tenant;
  int priority = 1;

  // The request of this call; the payload comes in pieces that are cut inside elements.
  Request MakeRequest(const std::shared_ptr<Call>& self) {
    Request request;
    request.block = block_;
    request.tokens = inputs_[0].dims[0];
    request.deadline = deadline;
    request.tenant = tenant;
    request.priority = priority;
    auto payload = std::make_shared<std::vector<RowTensor>>(inputs_);
    for (size_t i = 0; i < payload->size(); ++i) {
      const RowTensor& tensor = (*payload)[i];
      InputPayload& input = request.inputs[i];
      input.present = !tensor.dims.empty();
      input.dtype = tensor.dtype;
      const auto* data = reinterpret_cast<const std::byte*>(tensor.bytes.data());
      for (size_t at = 0; at < tensor.bytes.size();) {
        const size_t size = std::min<size_t>(tensor.bytes.size() - at, at == 0 ? 7 : 101);
        input.pieces.push_back({data + at, size});
        at += size;
      }
    }
    payload_ = payload;
    request.payload = std::move(payload);
    request.done = [self](Outcome outcome) { self->OnDone(std::move(outcome)); };
    return request;
  }

  // The outcome, when it is there. Only one may come.
  Outcome& Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return answers_ > 0; });
    return outcome_;
  }
  bool answered() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return answers_ > 0;
  }
  int answers() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return answers_;
  }
  bool payload_released() const { return payload_.expired(); }
  void ReleaseOutputs() {
    std::lock_guard<std::mutex> lock(mutex_);
    outcome_.storage.reset();
  }

  // Awaits the outcome, which must be OK and the bits that the block gives for this request alone.
  void ExpectRight() {
    const Outcome& outcome = Await();
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    const auto expected = RunOnCpu(*block_->On(Device{}), inputs_);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (size_t o = 0; o < expected->size(); ++o) {
      const std::string got = BytesOf(outcome.outputs[o]);
      ASSERT_EQ(got.size(), (*expected)[o].bytes.size()) << "output " << o;
      EXPECT_TRUE(got == (*expected)[o].bytes)
          << "output " << o << " differs from the one computed alone";
    }
  }
  // Awaits the outcome, which must be OK; the outputs' bytes, one after the other.
  std::string AwaitBytes() {
    const Outcome& outcome = Await();
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    std::string bytes;
    for (const OutputPieces& output : outcome.outputs) bytes += BytesOf(output);
    return bytes;
  }
  Reason AwaitRefusal() {
    const Outcome& outcome = Await();
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_EQ(outcome.storage, nullptr);
    return outcome.status.ok() ? Reason::kInternal : ReasonOf(outcome.status);
  }

 private:
  static std::string BytesOf(const OutputPieces& pieces) {
    std::string bytes;
    for (const absl::Span<const std::byte> piece : pieces) {
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    return bytes;
  }
  void OnDone(Outcome outcome) {
    std::lock_guard<std::mutex> lock(mutex_);
    outcome_ = std::move(outcome);
    ++answers_;
    changed_.notify_all();
  }

  const std::shared_ptr<const ServedBlock> block_;
  const std::vector<RowTensor> inputs_;
  std::weak_ptr<void> payload_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Outcome outcome_;
  int answers_ = 0;
};

// An engine of lanes whose faults the test decides.
class EngineTest : public ::testing::Test {
 protected:
  const Device kCpu{};
  const Device kCuda0{DeviceType::kCuda, 0};
  const Device kCuda1{DeviceType::kCuda, 1};

  EngineTest() {
    options_.devices = {kCpu};
    options_.cpu_threads = 2;
    options_.lanes_per_device = 1;
    options_.batch_tokens_max = 64;
    options_.request_tokens_max = 64;
    options_.queue_tokens_max = 1000;
    options_.make_lane = WithFaults(SimulatedDevices(), faults_);
  }
  ~EngineTest() override {
    for (const Device device : {kCpu, kCuda0, kCuda1}) faults_->Release(device);
  }

  void Start() {
    auto engine = Engine::Create(options_, metrics_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  std::shared_ptr<ServedBlock> Serve(const std::string& name, BlockKind kind,
                                     DType dtype = DType::kBF16) {
    auto block = MakeBlock(name, kind, dtype, block_devices_);
    const absl::Status status = engine_->Prepare(*block, {}, measure_max_);
    EXPECT_TRUE(status.ok()) << status;
    return block;
  }

  using CallPtr = std::shared_ptr<Call>;
  static CallPtr MakeCall(std::shared_ptr<const ServedBlock> block, std::vector<RowTensor> inputs) {
    return std::make_shared<Call>(std::move(block), std::move(inputs));
  }
  CallPtr Send(const CallPtr& call) {
    id_ = engine_->Submit(call->MakeRequest(call));
    return call;
  }
  CallPtr Send(const std::shared_ptr<ServedBlock>& block, int64_t tokens, uint32_t seed = 1) {
    return Send(MakeCall(block, {RandomRows(block->spec.dtype, tokens, seed)}));
  }
  // Keeps the only lane of the device busy with a request of one token until Release.
  CallPtr Occupy(const std::shared_ptr<ServedBlock>& block, Device device) {
    faults_->Hold(device);
    CallPtr call = Send(block, 1, 99);
    faults_->AwaitHeld(device, 1);
    return call;
  }
  double Shed(const std::string& block, const std::string& cause) {
    return metrics_.Value("fuseblock_shed_total{block=\"" + block + "\",cause=\"" + cause + "\"}");
  }
  // Everything that was admitted has been given back.
  void ExpectNothingHeld() {
    engine_->Drain(absl::Now() + absl::Minutes(1));
    EXPECT_EQ(metrics_.Value("fuseblock_inflight_requests"), 0);
    EXPECT_EQ(metrics_.Value("fuseblock_queue_tokens"), 0);
    EXPECT_EQ(metrics_.Value("fuseblock_queue_bytes"), 0);
    EXPECT_EQ(
        metrics_.Value("fuseblock_memory_bytes{device=\"cpu\",pool=\"requests\",state=\"used\"}"),
        0);
  }

  Metrics metrics_;
  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  EngineOptions options_;
  std::vector<Device> block_devices_ = {kCpu};  // real ones: simulated devices use the CPU's blocks
  absl::Duration measure_max_ = absl::ZeroDuration();  // of each block
  std::unique_ptr<Engine> engine_;
  Engine::RequestId id_ = 0;  // of the newest request
};

}  // namespace fuseblock::testing
