// What the server counts is what its clients saw: every reason for which a request can be refused
// is provoked, over both RPCs, and the series of requests, sheds and errors have exactly the
// samples that the answers add up to. Time is simulated.
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/reason.h"
#include "tests/integration/rpc_fixture.h"
#include "tests/unit/server/engine/simulated_clock.h"

namespace fuseblock::testing {
namespace {

using Samples = std::map<std::string, double>;  // by name and labels

constexpr int64_t kTokensMax = 12;  // of a request
constexpr char kLoading[] = "m.loading";
constexpr char kUnknown[] = "unknown";

class CountersTest : public RpcFixture, public ::testing::WithParamInterface<Rpc> {
 protected:
  using Result = absl::StatusOr<client::Answer>;
  struct Asked {
    std::string block;  // that it is counted under
    std::future<Result> answer;
    std::function<void()> cancel;
  };

  CountersTest() {
    faults_ = std::make_shared<Faults>(clock_);
    engine_options_.clock = &clock_;
    engine_options_.request_tokens_max = kTokensMax;
    rpc_options_.blocks.limits.tokens_max = kTokensMax;
  }
  ~CountersTest() override { Stop(); }  // before the clock goes

  Asked Ask(const client::Request& request, const std::string& block,
            const client::CallOptions& options) {
    auto promise = std::make_shared<std::promise<Result>>();
    Asked asked{block, promise->get_future(), {}};
    if (GetParam() == Rpc::kRunBlock) {
      client::Call call = client_->RunAsync(
          request, options, [promise](Result result) { promise->set_value(std::move(result)); });
      asked.cancel = [call]() mutable { call.Cancel(); };
      return asked;
    }
    client::CallOptions whole = options;
    whole.timeout = absl::InfiniteDuration();
    const std::shared_ptr<client::Stream> stream = client_->OpenStream(
        whole, [promise](uint64_t, Result result) { promise->set_value(std::move(result)); });
    stream->Send(1, request, options.timeout);
    asked.cancel = [stream] { stream->Cancel(); };
    return asked;
  }
  Asked Ask(int64_t tokens, const client::CallOptions& options = {}) {
    return Ask(client::Request(kMlp, {ToClient("x", X(tokens))}), kMlp, options);
  }
  // One that is admitted, and waits or runs.
  Asked AskAndAwait(int64_t tokens, const client::CallOptions& options = {}) {
    const double before = Counter("inflight_requests");
    Asked asked = Ask(tokens, options);
    Await("inflight_requests", before + 1);
    return asked;
  }
  // One that the lane keeps until Release.
  Asked Occupy(Device device) {
    faults_->Hold(device);
    Asked asked = Ask(4);
    faults_->AwaitHeld(device, 1);
    return asked;
  }

  // Awaits the answer and adds what should have been counted for it.
  void See(Asked asked) {
    const Result result = asked.answer.get();
    ++expected_[absl::StrCat("fuseblock_requests_total{block=\"", asked.block, "\",code=\"",
                             absl::StatusCodeToString(result.status().code()), "\",rpc=\"",
                             std::string(Name(GetParam())), "\"}")];
    if (result.ok()) return;
    const client::Error error = client::ErrorOf(result.status());
    // The client's own end comes from its side of the connection, without the server's details.
    const std::string reason =
        error.code == absl::StatusCode::kCancelled ? "CANCELLED" : error.reason;
    ++seen_[reason];
    for (const ReasonTraits& traits : AllReasons()) {
      if (traits.name != reason) continue;
      const std::string cause(traits.cause);
      ++expected_[absl::StrCat("fuseblock_errors_total{category=\"", cause, "\"}")];
      if (!traits.shed) continue;
      ++expected_[absl::StrCat("fuseblock_shed_total{block=\"", asked.block, "\",cause=\"", cause,
                               "\"}")];
    }
  }

  // The samples of these series that are not 0.
  Samples Counted() const {
    Samples counted;
    for (const absl::string_view line : absl::StrSplit(metrics_.Expose(), '\n')) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(line, absl::MaxSplits("} ", 1));
      double value = 0;
      for (const char* series : {"requests_total", "shed_total", "errors_total"}) {
        if (!absl::StartsWith(line, absl::StrCat("fuseblock_", series, "{"))) continue;
        if (!absl::SimpleAtod(parts.second, &value) || value == 0) continue;
        counted[absl::StrCat(parts.first, "}")] = value;
      }
    }
    return counted;
  }
  // The server learns of a cancellation on its own threads, after the client saw it.
  void ExpectCountedAsSeen() const {
    const absl::Time hang = HangTime();
    while (Counted() != expected_ && absl::Now() < hang) std::this_thread::yield();
    EXPECT_EQ(Counted(), expected_);
  }

  SimulatedClock clock_;
  std::map<std::string, int> seen_;  // by reason
  Samples expected_;
};

TEST_P(CountersTest, EveryReasonIsCountedAsClientsSawIt) {
  engine_options_.queue_tokens_max = 20;
  engine_options_.queue_bytes_max = 16 * 2 * 48 * SizeOf(DType::kBF16);  // of 16 tokens
  engine_options_.tenant_quotas["small"].tokens_max = 2;
  StartServer();
  registry_.Declare(kLoading);

  const RowTensor x = X(2), wide = MakeRows(DType::kBF16, {2, 47}, 1);
  See(Ask(client::Request("no.such.block", {ToClient("x", x)}), kUnknown, {}));
  See(Ask(client::Request(kMlp, {ToClient("x", x)}, "9"), kUnknown, {}));
  See(Ask(client::Request(kLoading, {ToClient("x", x)}), kLoading, {}));
  See(Ask(client::Request(kMlp, {ToClient("x", wide)}), kMlp, {}));
  See(Ask(kTokensMax + 1));

  std::vector<Asked> admitted;
  admitted.push_back(Occupy(kCpu));
  admitted.push_back(AskAndAwait(2, {.tenant = "small"}));
  for (int i = 0; i < 3; ++i) See(Ask(1, {.tenant = "small"}));
  Asked cancelled = AskAndAwait(3);
  cancelled.cancel();
  See(std::move(cancelled));
  Await("inflight_requests", 2);
  admitted.push_back(AskAndAwait(8));
  for (int i = 0; i < 2; ++i) See(Ask(7));  // 21 tokens
  See(Ask(3));                              // 17
  Asked expires = AskAndAwait(1, {.timeout = absl::Hours(1)});
  clock_.Advance(absl::Hours(2));
  See(std::move(expires));
  faults_->Release(kCpu);
  for (Asked& asked : admitted) See(std::move(asked));
  Await("inflight_requests", 0);  // an answer's budget returns when it has been sent

  // The last batch is known to have taken two hours.
  for (int i = 0; i < 2; ++i) See(Ask(4, {.timeout = absl::Minutes(1)}));
  faults_->Inject(kCpu, Fault::kLaunchFailure);
  See(Ask(1));
  faults_->Inject(kCpu, Fault::kOutOfMemory);
  See(Ask(1));

  Await("inflight_requests", 0);
  Asked running = Occupy(kCpu), waiting = AskAndAwait(1);
  engine_->Drain(absl::InfinitePast());
  See(std::move(waiting));
  for (int i = 0; i < 3; ++i) See(Ask(1));
  faults_->Release(kCpu);
  See(std::move(running));

  EXPECT_EQ(seen_, (std::map<std::string, int>{{"BAD_TENSOR", 1},
                                               {"BLOCK_NOT_FOUND", 2},
                                               {"BLOCK_NOT_READY", 1},
                                               {"CANCELLED", 1},
                                               {"DEADLINE_INFEASIBLE", 2},
                                               {"DRAINING", 4},
                                               {"EXPIRED", 1},
                                               {"INTERNAL", 1},
                                               {"MEMORY", 2},
                                               {"QUEUE_FULL", 2},
                                               {"QUOTA", 3},
                                               {"TOO_LARGE", 1}}));
  // A reason that is added has to come here, or it is not one of requests for blocks.
  const std::set<Reason> elsewhere = {Reason::kDeviceLost, Reason::kUnauthenticated,
                                      Reason::kPermissionDenied, Reason::kBadArgument,
                                      Reason::kConflict};
  for (const ReasonTraits& traits : AllReasons()) {
    EXPECT_NE(seen_.contains(std::string(traits.name)), elsewhere.contains(traits.reason))
        << traits.name;
  }
  ExpectCountedAsSeen();
}

TEST_P(CountersTest, SoIsALostDevice) {
  engine_options_.devices = {kGpu};
  engine_options_.fallback = FallbackPolicy::kRefuse;
  StartServer();
  Asked running = Occupy(kGpu), waiting = AskAndAwait(2);
  faults_->Inject(kGpu, Fault::kDeviceLost);
  faults_->Release(kGpu);
  See(std::move(running));
  See(std::move(waiting));
  for (int i = 0; i < 3; ++i) See(Ask(1));
  EXPECT_EQ(seen_, (std::map<std::string, int>{{"DEVICE_LOST", 5}}));
  ExpectCountedAsSeen();
}

INSTANTIATE_TEST_SUITE_P(Rpcs, CountersTest, ::testing::Values(Rpc::kRunBlock, Rpc::kStreamBlocks),
                         [](const auto& test) { return std::string(Name(test.param)); });

}  // namespace
}  // namespace fuseblock::testing
