// Many clients of ragged sizes at a time, unary and on streams: every answer has the bits of the
// same request computed alone, or is a declared refusal. FUSEBLOCK_SOAK_SECONDS makes it go on for
// as long.
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "tests/integration/rpc_fixture.h"

namespace fuseblock::testing {
namespace {

constexpr int kClients = 64;
constexpr int kRounds = 40;  // requests of one client, in the short form
constexpr int kInputs = 40;  // different requests; their answers are computed beforehand
constexpr int64_t kTokensMax = 300;

class RaggedTest : public RpcFixture {
 protected:
  struct Case {
    client::Request request;
    std::vector<std::string> outputs;  // computed alone
  };

  // Requests to every kind of block, 0 to 300 tokens, with and without a residual.
  std::vector<Case> MakeCases() {
    std::mt19937 random(3);
    std::vector<Case> cases;
    for (int i = 0; i < kInputs; ++i) {
      const char* const parts[] = {"mlp", "ffn_path", "ffn_norm", "attn_norm"};
      const std::string name = absl::StrCat("m.layers.", i % 2, ".", parts[i / 2 % 4]);
      // Small ones more often than large ones, and the ends.
      const int64_t tokens = i < 2   ? 0
                             : i < 4 ? kTokensMax
                                     : random() % (1 + random() % kTokensMax);
      std::vector<RowTensor> inputs = {X(tokens, 100 + i)};
      std::vector<client::Tensor> tensors = {ToClient("x", inputs[0])};
      if (i / 2 % 4 != 0 && random() % 2 == 0) {
        inputs.push_back(X(tokens, 200 + i));
        tensors.push_back(ToClient("residual", inputs[1]));
      }
      Case item{client::Request(name, tensors), {}};
      for (const RowTensor& output : Alone(name, inputs)) {
        if (!output.dims.empty()) item.outputs.push_back(output.bytes);
      }
      cases.push_back(std::move(item));
    }
    return cases;
  }

  // Whether the answer is right; a refusal that is declared counts as right.
  static bool IsRight(const Case& item, const absl::StatusOr<client::Answer>& answer,
                      std::atomic<int64_t>* refused) {
    if (!answer.ok()) {
      const std::string reason = client::ErrorOf(answer.status()).reason;
      if (reason == "QUEUE_FULL" || reason == "MEMORY") {
        ++*refused;
        return true;
      }
      ADD_FAILURE() << answer.status();
      return false;
    }
    if (answer->outputs.size() != item.outputs.size()) return false;
    for (size_t i = 0; i < item.outputs.size(); ++i) {
      const auto data = answer->outputs[i].data;
      if (std::string_view(reinterpret_cast<const char*>(data.data()), data.size()) !=
          item.outputs[i]) {
        return false;
      }
    }
    return true;
  }
};

TEST_F(RaggedTest, EveryAnswerHasTheBitsOfItsRequestAlone) {
  engine_options_.lanes_per_device = 2;
  engine_options_.queue_tokens_max = 8000;  // so that some are refused
  StartServer();
  const std::vector<Case> cases = MakeCases();
  const char* seconds = std::getenv("FUSEBLOCK_SOAK_SECONDS");
  const absl::Time end = absl::Now() + absl::Seconds(seconds == nullptr ? 0 : std::atoi(seconds));
  std::atomic<int64_t> answered = 0, refused = 0, wrong = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      client::Client client(rpc_->address());
      std::mt19937 random(static_cast<uint32_t>(c));
      // Every third client streams all its requests, the others run them one by one.
      std::unique_ptr<client::Stream> stream;
      std::mutex mutex;
      std::condition_variable changed;
      std::map<uint64_t, const Case*> sent;
      if (c % 3 == 0) {
        stream = client.OpenStream({}, [&](uint64_t id, absl::StatusOr<client::Answer> answer) {
          std::lock_guard<std::mutex> lock(mutex);
          if (!IsRight(*sent.at(id), answer, &refused)) ++wrong;
          sent.erase(id);
          changed.notify_one();
          ++answered;
        });
      }
      for (int round = 0; round < kRounds || absl::Now() < end; ++round) {
        const Case& item = cases[random() % cases.size()];
        if (stream == nullptr) {
          if (!IsRight(item, client.Run(item.request), &refused)) ++wrong;
          ++answered;
          continue;
        }
        const auto id = static_cast<uint64_t>(round);
        {
          std::unique_lock<std::mutex> lock(mutex);
          changed.wait(lock, [&] { return sent.size() < 16; });
          sent.emplace(id, &item);
        }
        stream->Send(id, item.request);
      }
      if (stream != nullptr) {
        EXPECT_EQ(stream->Finish(), absl::OkStatus());
      }
    });
  }
  for (std::thread& thread : clients) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(answered, kClients * kRounds);
  EXPECT_GT(answered - refused, 0);
  std::printf("%ld answers, %ld of them refusals\n", static_cast<long>(answered),
              static_cast<long>(refused));
  Await("inflight_requests", 0);
  EXPECT_EQ(metrics_.Value("fuseblock_queue_bytes"), 0);
}

}  // namespace
}  // namespace fuseblock::testing
