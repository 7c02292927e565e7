// Shadow runs: what is chosen, what is compared with, and that the answered requests never wait for
// them and are never refused for them.
#include "server/engine/shadow.h"

#include <cmath>
#include <thread>

#include "server/model/registry.h"
#include "tests/unit/server/engine/engine_fixture.h"

namespace fuseblock::testing {
namespace {

class ShadowTest : public EngineTest {
 protected:
  ~ShadowTest() override {
    for (const Device device : {kCpu, kCuda0}) shadow_faults_->Release(device);
    engine_.reset();  // its requests hold samples
  }

  void StartShadow() {
    Start();
    shadow_options_.devices = options_.devices;
    shadow_options_.make_lane = WithFaults(SimulatedDevices(), shadow_faults_);
    shadow_ = std::make_unique<Shadow>(shadow_options_, registry_);
  }
  // A norm whose weights are always the same; the epsilon tells revisions apart.
  std::shared_ptr<const ServedBlock> Publish(int64_t revision, float epsilon) {
    auto served = MakeBlock(kName, BlockKind::kNormResidual);
    served->revision = revision;
    served->spec.norm.eps = epsilon;
    BlockWeights weights;
    const HostTensor norm = NormalTensor(DType::kBF16, {kHidden}, 1);
    weights.norm = norm.view();
    auto block = Block::Create(served->spec, weights, kCpu);
    EXPECT_TRUE(block.ok()) << block.status();
    served->blocks = {*std::move(block)};
    EXPECT_TRUE(engine_->Prepare(*served).ok());
    EXPECT_TRUE(registry_.Publish(served).ok());
    return served;
  }
  // A request as the RPC layer brings it: it may be chosen, and its outcome is offered.
  CallPtr Ask(const std::shared_ptr<const ServedBlock>& block, int64_t tokens = 3) {
    CallPtr call = MakeCall(block, {RandomRows(DType::kBF16, tokens, ++seed_)});
    Request request = call->MakeRequest(call);
    auto sample = shadow_->Choose(request);
    request.done = [this, sample = std::move(sample),
                    done = std::move(request.done)](Outcome outcome) mutable {
      if (sample != nullptr) shadow_->Offer(std::move(sample), outcome);
      std::move(done)(std::move(outcome));
    };
    engine_->Submit(std::move(request));
    return call;
  }
  double Count(const std::string& result) {
    return metrics_.Value("fuseblock_shadow_total{block=\"" + std::string(kName) + "\",result=\"" +
                          result + "\"}");
  }
  double All() { return Count("equal") + Count("different") + Count("failed") + Count("skipped"); }
  void AwaitAll(double count) {
    const absl::Time hang = absl::Now() + absl::Minutes(1);
    while (All() < count && absl::Now() < hang) std::this_thread::yield();
    EXPECT_EQ(All(), count);
  }
  absl::Status Set(double share, int64_t revision, const std::string& backend = "",
                   const std::string& name = "m") {
    return shadow_->Set({name, share, revision, backend});
  }

  static constexpr const char* kName = "m.layers.0.attn_norm";
  BlockRegistry registry_;
  Shadow::Options shadow_options_;
  std::shared_ptr<Faults> shadow_faults_ = std::make_shared<Faults>();
  std::unique_ptr<Shadow> shadow_;
  uint32_t seed_ = 0;
};

TEST_F(ShadowTest, RunsTheShareAndFindsEqualRevisionsEqual) {
  StartShadow();
  const auto block = Publish(1, 1e-5f);
  Publish(2, 1e-5f);
  for (int i = 0; i < 10; ++i) Ask(block)->ExpectRight();
  EXPECT_EQ(All(), 0) << "nothing is set";
  ASSERT_TRUE(Set(0.25, 2).ok());
  for (int i = 0; i < 40; ++i) {
    Ask(block, i % 5)->ExpectRight();
    AwaitAll((i + 1) / 4);  // one at a time: no lock is held when the next comes
  }
  EXPECT_EQ(Count("different"), 0);
  EXPECT_EQ(Count("failed"), 0);
  EXPECT_GE(Count("equal"), 9);
  ASSERT_TRUE(Set(0, 0).ok());
  for (int i = 0; i < 10; ++i) Ask(block)->ExpectRight();
  EXPECT_EQ(All(), 10);
}

TEST_F(ShadowTest, MeasuresHowFarRevisionsAreApart) {
  StartShadow();
  const auto block = Publish(1, 1e-5f);
  Publish(2, 4.0f);
  ASSERT_TRUE(Set(1, 2).ok());
  Ask(block)->ExpectRight();
  AwaitAll(1);
  EXPECT_EQ(Count("different"), 1);
  const std::string series = "fuseblock_shadow_difference_ulp_";
  const std::string label = "{block=\"" + std::string(kName) + "\"}";
  EXPECT_EQ(metrics_.Value(series + "count" + label), 1);
  EXPECT_GE(metrics_.Value(series + "sum" + label), 1);
}

TEST_F(ShadowTest, ComparesBackends) {
  options_.devices = {kCuda0, kCpu};
  StartShadow();
  const auto block = Publish(1, 1e-5f);
  ASSERT_TRUE(Set(1, 0, "cpu").ok());
  Ask(block)->ExpectRight();
  AwaitAll(1);
  EXPECT_EQ(Count("equal"), 1) << "the simulated GPU computes as the CPU does";
  EXPECT_EQ(shadow_faults_->launches(kCpu), 1);
  EXPECT_EQ(shadow_faults_->launches(kCuda0), 0);
  // Without a backend: where the revision runs best.
  Publish(2, 1e-5f);
  ASSERT_TRUE(Set(1, 2).ok());
  Ask(block)->ExpectRight();
  AwaitAll(2);
  EXPECT_EQ(shadow_faults_->launches(kCuda0), 1);
}

TEST_F(ShadowTest, ItsFailuresAreItsOwn) {
  StartShadow();
  const auto block = Publish(1, 1e-5f);
  Publish(2, 1e-5f);
  ASSERT_TRUE(Set(1, 2).ok());
  shadow_faults_->Inject(kCpu, Fault::kLaunchFailure);
  Ask(block)->ExpectRight();
  AwaitAll(1);
  EXPECT_EQ(Count("failed"), 1);
  Ask(block)->ExpectRight();
  AwaitAll(2);
  EXPECT_EQ(Count("equal"), 1);
  EXPECT_EQ(metrics_.Value("fuseblock_device_healthy{device=\"cpu\"}"), 1);
}

// The shadow hangs in its first run, with as much waiting as its budget allows. All requests are
// answered; nothing of theirs is held.
TEST_F(ShadowTest, AnsweredRequestsNeitherWaitForItNorAreRefused) {
  const int64_t bytes = 3 * kHidden * 2;  // of an input, and of an output
  shadow_options_.bytes_max = 4 * 2 * bytes;
  StartShadow();
  const auto block = Publish(1, 1e-5f);
  Publish(2, 1e-5f);
  ASSERT_TRUE(Set(1, 2).ok());
  shadow_faults_->Hold(kCpu);
  Ask(block)->ExpectRight();
  shadow_faults_->AwaitHeld(kCpu, 1);
  for (int i = 0; i < 50; ++i) Ask(block)->ExpectRight();
  ExpectNothingHeld();
  EXPECT_GE(Count("skipped"), 47) << "four fit, one of which runs";
  EXPECT_EQ(Count("equal"), 0);
  for (const ReasonTraits& traits : AllReasons()) {
    EXPECT_EQ(Shed(kName, std::string(traits.cause)), 0) << traits.cause;
  }
  shadow_faults_->Release(kCpu);
  AwaitAll(51);
  EXPECT_EQ(Count("failed"), 0);
  EXPECT_GE(Count("equal"), 1);
}

TEST_F(ShadowTest, FailedRequestsAreNotCompared) {
  StartShadow();
  const auto block = Publish(1, 1e-5f);
  Publish(2, 1e-5f);
  ASSERT_TRUE(Set(1, 2).ok());
  faults_->Inject(kCpu, Fault::kLaunchFailure);
  EXPECT_EQ(Ask(block)->AwaitRefusal(), Reason::kInternal);
  Ask(block)->ExpectRight();
  AwaitAll(1);
  EXPECT_EQ(Count("equal"), 1);
}

TEST_F(ShadowTest, ARevisionThatWasUnloadedIsSkippedAndNotKept) {
  StartShadow();
  const auto block = Publish(1, 1e-5f);
  std::weak_ptr<const ServedBlock> second = Publish(2, 1e-5f);
  ASSERT_TRUE(Set(1, 2).ok());
  Ask(block)->ExpectRight();
  AwaitAll(1);
  ASSERT_TRUE(registry_.Unload("m", 2).ok());
  EXPECT_TRUE(second.expired());
  Ask(block)->ExpectRight();
  AwaitAll(2);
  EXPECT_EQ(Count("skipped"), 1);
}

TEST_F(ShadowTest, ABlocksRuleGoesBeforeItsModels) {
  StartShadow();
  const auto block = Publish(1, 1e-5f);
  Publish(2, 1e-5f);
  Publish(3, 4.0f);
  ASSERT_TRUE(Set(1, 2).ok());
  ASSERT_TRUE(Set(1, 3, "", kName).ok());
  Ask(block)->ExpectRight();
  AwaitAll(1);
  EXPECT_EQ(Count("different"), 1);
  ASSERT_EQ(shadow_->rules().size(), 2u);
  EXPECT_EQ(shadow_->rules()[1].name, kName);
  ASSERT_TRUE(Set(0, 0, "", kName).ok());
  Ask(block)->ExpectRight();
  AwaitAll(2);
  EXPECT_EQ(Count("equal"), 1);
}

TEST_F(ShadowTest, RulesThatMeanNothingAreRefused) {
  StartShadow();
  Publish(1, 1e-5f);
  EXPECT_EQ(Set(1.5, 1).message(), "share: expected 0 to 1, got 1.5");
  EXPECT_EQ(Set(std::nan(""), 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Set(0.5, 0).message(), "expected a revision or a backend to compare with");
  EXPECT_EQ(Set(0.5, 0, "cuda:9").message(), "backend: expected one of cpu, got \"cuda:9\"");
  EXPECT_EQ(ReasonOf(Set(0.5, 2)), Reason::kBlockNotFound);
  EXPECT_EQ(ReasonOf(Set(0.5, 1, "", "n")), Reason::kBlockNotFound);
  EXPECT_TRUE(shadow_->rules().empty());
}

}  // namespace
}  // namespace fuseblock::testing
