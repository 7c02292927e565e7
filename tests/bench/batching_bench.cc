// What batching gives: callers of the engine in this process, without RPC, each with one request in
// flight, of a block as large as a model's feed-forward. "off" gives every caller a block of its
// own with the same weights, so that no two requests ever share a batch; "on" lets them call one
// block. Every answer is compared, bit for bit, with the one that the same request got alone.
//
//   batching_bench --device cuda:0 --hidden 4096 --intermediate 14336     prints JSON
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "kernels/base/buffer.h"
#include "kernels/base/half.h"
#include "server/engine/cpu_team.h"
#include "server/engine/devices.h"
#include "server/engine/engine.h"
#include "server/engine/memory_plan.h"
#include "server/observe/metrics.h"

namespace fuseblock {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string device = "cpu";
  int64_t hidden = 64, intermediate = 192;
  int64_t lanes = 2, threads = 0, rounds = 3;
  std::vector<int64_t> callers = {1, 16, 64, 256};
  double seconds = 1;  // of each turn
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "batching_bench: %s\n", why.c_str());
  std::exit(1);
}

Arguments ParseArguments(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; i += 2) {
    const absl::string_view name = argv[i];
    const absl::string_view value = i + 1 < argc ? argv[i + 1] : "";
    bool good = true;
    if (name == "--device") {
      out.device = std::string(value);
    } else if (name == "--hidden") {
      good = absl::SimpleAtoi(value, &out.hidden);
    } else if (name == "--intermediate") {
      good = absl::SimpleAtoi(value, &out.intermediate);
    } else if (name == "--lanes") {
      good = absl::SimpleAtoi(value, &out.lanes);
    } else if (name == "--threads") {
      good = absl::SimpleAtoi(value, &out.threads);
    } else if (name == "--rounds") {
      good = absl::SimpleAtoi(value, &out.rounds) && out.rounds > 0;
    } else if (name == "--seconds") {
      good = absl::SimpleAtod(value, &out.seconds);
    } else if (name == "--callers") {
      out.callers.clear();
      for (const absl::string_view part : absl::StrSplit(value, ',')) {
        good =
            good && absl::SimpleAtoi(part, &out.callers.emplace_back()) && out.callers.back() > 0;
      }
    } else {
      Fail(absl::StrCat("unknown option ", name,
                        "; there are --device, --hidden, --intermediate, --lanes, --threads, "
                        "--callers N,N, --rounds, --seconds"));
    }
    if (!good) Fail(absl::StrCat(name, ": expected a number, got \"", value, "\""));
  }
  return out;
}

// Uniform with the given standard deviation; fast, because a model's weights are many.
std::vector<BFloat16> RandomValues(size_t count, uint64_t seed, float deviation) {
  std::vector<BFloat16> values(count);
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  const float scale = deviation * 1.7320508f / 32768.0f;
  for (BFloat16& value : values) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    value = FromFloat<BFloat16>(static_cast<float>(static_cast<int16_t>(state >> 48)) * scale);
  }
  return values;
}

// The 4096/14336 FFN path, or a smaller one.
std::shared_ptr<const Block> MakeBlock(const Arguments& arguments, Device device) {
  BlockSpec spec;
  spec.kind = BlockKind::kFfnPath;
  spec.dtype = DType::kBF16;
  spec.hidden = arguments.hidden;
  spec.intermediate = arguments.intermediate;
  spec.norm.eps = 1e-5f;
  const auto h = static_cast<size_t>(spec.hidden), n = static_cast<size_t>(spec.intermediate);
  const auto by_hidden = 1 / std::sqrt(static_cast<float>(h));
  const auto norm = RandomValues(h, 1, 1);
  const auto gate = RandomValues(n * h, 2, by_hidden), up = RandomValues(n * h, 3, by_hidden);
  const auto down = RandomValues(h * n, 4, 1 / std::sqrt(static_cast<float>(n)));
  BlockWeights weights;
  weights.norm = ConstTensorView(norm.data(), spec.dtype, {spec.hidden});
  weights.gate = ConstTensorView(gate.data(), spec.dtype, {spec.intermediate, spec.hidden});
  weights.up = ConstTensorView(up.data(), spec.dtype, {spec.intermediate, spec.hidden});
  weights.down = ConstTensorView(down.data(), spec.dtype, {spec.hidden, spec.intermediate});
  CpuTeam team;
  auto block = Block::Create(spec, weights, device, team.parallel_for());
  if (!block.ok()) Fail(block.status().ToString());
  return *std::move(block);
}

std::shared_ptr<ServedBlock> Serve(const std::shared_ptr<const Block>& block,
                                   const std::string& name, Engine& engine) {
  auto served = std::make_shared<ServedBlock>();
  served->name = name;
  served->spec = block->spec();
  served->inputs = Block::Inputs(served->spec);
  served->outputs = Block::Outputs(served->spec);
  served->blocks = {block};
  if (const absl::Status s = engine.Prepare(*served); !s.ok()) Fail(s.ToString());
  return served;
}

// One request and the answer that it got alone.
struct Sample {
  int64_t tokens = 0;
  std::vector<BFloat16> x;
  std::vector<std::byte> alone;
};

struct Mix {
  const char* name;
  std::vector<Sample> samples;
};

// Callers that share a thread, as users of an asynchronous client do.
class Callers {
 public:
  Callers(Engine& engine, const Mix& mix, size_t count, uint32_t seed)
      : engine_(engine), mix_(mix), random_(seed), calls_(count) {}

  void Use(size_t caller, std::shared_ptr<const ServedBlock> block) {
    calls_[caller].block = std::move(block);
  }

  void Run(Clock::time_point measured_from, Clock::time_point end) {
    for (Call& call : calls_) Submit(call);
    size_t running = calls_.size();
    std::vector<Call*> answered;
    while (running > 0) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        waiting_ = true;
        changed_.wait(lock, [this] { return !answered_.empty(); });
        waiting_ = false;
        answered.swap(answered_);
      }
      const Clock::time_point now = Clock::now();
      for (Call* call : answered) {
        Check(*call);
        if (call->begin >= measured_from && now < end) {
          latencies_us.push_back(
              std::chrono::duration<double, std::micro>(now - call->begin).count());
        }
        if (now < end) {
          Submit(*call);
        } else {
          --running;
        }
      }
      answered.clear();
    }
  }

  std::vector<double> latencies_us;
  int64_t compared = 0, differences = 0;

 private:
  struct Call {
    std::shared_ptr<const ServedBlock> block;
    const Sample* sample = nullptr;
    Outcome outcome;
    Clock::time_point begin;
  };

  void Submit(Call& call) {
    call.sample = &mix_.samples[random_() % mix_.samples.size()];
    Request request;
    request.block = call.block;
    request.tokens = call.sample->tokens;
    request.inputs[0].present = true;
    request.inputs[0].dtype = DType::kBF16;
    request.inputs[0].pieces = {{reinterpret_cast<const std::byte*>(call.sample->x.data()),
                                 call.sample->x.size() * sizeof(BFloat16)}};
    request.done = [this, &call](Outcome outcome) {
      call.outcome = std::move(outcome);
      std::lock_guard<std::mutex> lock(mutex_);
      answered_.push_back(&call);
      if (waiting_) changed_.notify_one();
      waiting_ = false;
    };
    call.begin = Clock::now();
    engine_.Submit(std::move(request));
  }

  void Check(Call& call) {
    if (!call.outcome.status.ok()) Fail(call.outcome.status.ToString());
    const std::vector<std::byte>& alone = call.sample->alone;
    size_t at = 0;
    bool same = true;
    for (const absl::Span<const std::byte> piece : call.outcome.outputs[0]) {
      same = same && piece.size() <= alone.size() - at &&
             std::memcmp(piece.data(), alone.data() + at, piece.size()) == 0;
      at += piece.size();
    }
    ++compared;
    if (!same || at != alone.size()) ++differences;
    call.outcome.storage.reset();
  }

  Engine& engine_;
  const Mix& mix_;
  std::mt19937 random_;
  std::vector<Call> calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call*> answered_;
  bool waiting_ = false;
};

struct Turn {
  double requests_per_s = 0, tokens_per_batch = 0;
  std::vector<double> latencies_us;
  int64_t compared = 0, differences = 0;
};

class Bench {
 public:
  explicit Bench(const Arguments& arguments) : arguments_(arguments) {
    auto devices = ResolveDevices(arguments.device, FallbackPolicy::kRefuse);
    if (!devices.ok()) Fail(devices.status().ToString());
    EngineOptions options;
    options.devices = *devices;
    options.fallback = FallbackPolicy::kRefuse;
    options.lanes_per_device = static_cast<int>(arguments.lanes);
    options.cpu_threads = static_cast<int>(arguments.threads);
    options.queue_tokens_max = int64_t{1} << 20;
    options.graphs_per_lane_max = int64_t{1} << 20;
    // The callers' own blocks share their weights, which the sum would count for each.
    options.device_bytes_max = int64_t{1} << 50;
    auto engine = Engine::Create(options, metrics_);
    if (!engine.ok()) Fail(engine.status().ToString());
    engine_ = *std::move(engine);
    const std::shared_ptr<const Block> block = MakeBlock(arguments, devices->front());
    shared_ = Serve(block, "m.on", *engine_);
    const int64_t callers = *std::max_element(arguments.callers.begin(), arguments.callers.end());
    for (int64_t i = 0; i < callers; ++i) {
      own_.push_back(Serve(block, absl::StrCat("m.off", i), *engine_));
    }
  }

  Engine& engine() { return *engine_; }

  Mix MakeMix(const char* name, int64_t tokens_min, int64_t tokens_max, int samples) {
    Mix mix{name, {}};
    std::mt19937 random(17);
    for (int i = 0; i < samples; ++i) {
      Sample& sample = mix.samples.emplace_back();
      // The ends for certain.
      sample.tokens =
          i < 2 ? (i == 0 ? tokens_min : tokens_max)
                : tokens_min + static_cast<int64_t>(
                                   random() % static_cast<uint32_t>(tokens_max - tokens_min + 1));
      sample.x = RandomValues(static_cast<size_t>(sample.tokens * arguments_.hidden),
                              static_cast<uint64_t>(100 + i), 1);
    }
    for (Sample& sample : mix.samples) sample.alone = AnswerAlone(sample);
    return mix;
  }

  Turn RunTurn(const Mix& mix, int64_t callers, bool batching, double seconds, uint32_t seed) {
    const int64_t threads =
        std::clamp<int64_t>(UsableCores() / 2, 1, std::min<int64_t>(callers, 8));
    std::vector<std::unique_ptr<Callers>> groups;
    int64_t next = 0;
    for (int64_t t = 0; t < threads; ++t) {
      const int64_t count = callers / threads + (t < callers % threads ? 1 : 0);
      groups.push_back(std::make_unique<Callers>(*engine_, mix, static_cast<size_t>(count),
                                                 seed + static_cast<uint32_t>(t)));
      for (int64_t i = 0; i < count; ++i, ++next) {
        groups.back()->Use(static_cast<size_t>(i),
                           batching ? shared_ : own_[static_cast<size_t>(next)]);
      }
    }
    const double batches_before = metrics_.Value("fuseblock_batch_tokens_count");
    const double tokens_before = metrics_.Value("fuseblock_batch_tokens_sum");
    const auto of_seconds = [](double s) {
      return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
    };
    const Clock::time_point measured_from = Clock::now() + of_seconds(seconds / 4);
    const Clock::time_point end = measured_from + of_seconds(seconds);
    std::vector<std::thread> running;
    for (auto& group : groups) {
      running.emplace_back([&group, measured_from, end] { group->Run(measured_from, end); });
    }
    for (std::thread& thread : running) thread.join();
    Turn turn;
    for (const auto& group : groups) {
      turn.latencies_us.insert(turn.latencies_us.end(), group->latencies_us.begin(),
                               group->latencies_us.end());
      turn.compared += group->compared;
      turn.differences += group->differences;
    }
    turn.requests_per_s = static_cast<double>(turn.latencies_us.size()) / seconds;
    turn.tokens_per_batch = (metrics_.Value("fuseblock_batch_tokens_sum") - tokens_before) /
                            (metrics_.Value("fuseblock_batch_tokens_count") - batches_before);
    return turn;
  }

 private:
  std::vector<std::byte> AnswerAlone(const Sample& sample) {
    std::mutex mutex;
    std::condition_variable changed;
    Outcome outcome;
    bool answered = false;
    Request request;
    request.block = shared_;
    request.tokens = sample.tokens;
    request.inputs[0] = {true,
                         DType::kBF16,
                         {{reinterpret_cast<const std::byte*>(sample.x.data()),
                           sample.x.size() * sizeof(BFloat16)}}};
    request.done = [&](Outcome given) {
      std::lock_guard<std::mutex> lock(mutex);
      outcome = std::move(given);
      answered = true;
      changed.notify_one();
    };
    engine_->Submit(std::move(request));
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return answered; });
    if (!outcome.status.ok()) Fail(outcome.status.ToString());
    std::vector<std::byte> y;
    for (const absl::Span<const std::byte> piece : outcome.outputs[0]) {
      y.insert(y.end(), piece.begin(), piece.end());
    }
    return y;
  }

  const Arguments arguments_;
  Metrics metrics_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<ServedBlock> shared_;
  std::vector<std::shared_ptr<ServedBlock>> own_;
};

double At(std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(static_cast<double>(sorted.size()) * share))];
}

// One line of JSON for a mix, a number of callers, on or off.
std::string ResultOf(const Mix& mix, int64_t callers, bool batching, std::vector<Turn> turns) {
  std::vector<double> rates, latencies;
  int64_t compared = 0, differences = 0;
  double tokens_per_batch = 0;
  for (Turn& turn : turns) {
    rates.push_back(turn.requests_per_s);
    latencies.insert(latencies.end(), turn.latencies_us.begin(), turn.latencies_us.end());
    compared += turn.compared;
    differences += turn.differences;
    tokens_per_batch += turn.tokens_per_batch / static_cast<double>(turns.size());
  }
  std::sort(latencies.begin(), latencies.end());
  return absl::StrCat("{\"mix\": \"", mix.name, "\", \"callers\": ", callers, ", \"batching\": \"",
                      batching ? "on" : "off", "\", \"requests_per_s\": [",
                      absl::StrJoin(rates, ", "), "], \"p50_us\": ", At(latencies, 0.5),
                      ", \"p99_us\": ", At(latencies, 0.99),
                      ", \"tokens_per_batch\": ", tokens_per_batch, ", \"compared\": ", compared,
                      ", \"differences\": ", differences, "}");
}

int Main(int argc, char** argv) {
  const Arguments arguments = ParseArguments(argc, argv);
  Bench bench(arguments);
  const Mix mixes[] = {bench.MakeMix("one_token", 1, 1, 64), bench.MakeMix("ragged", 0, 300, 64)};
  std::vector<std::string> results;
  const int64_t allocations = Buffer::allocations();
  int64_t differences = 0;
  for (const Mix& mix : mixes) {
    for (const int64_t callers : arguments.callers) {
      std::array<std::vector<Turn>, 2> turns;
      for (int64_t round = 0; round < arguments.rounds; ++round) {
        for (const bool batching : {false, true}) {
          turns[batching].push_back(bench.RunTurn(mix, callers, batching, arguments.seconds,
                                                  static_cast<uint32_t>(round * 100)));
          differences += turns[batching].back().differences;
        }
      }
      for (const bool batching : {false, true}) {
        results.push_back(ResultOf(mix, callers, batching, std::move(turns[batching])));
        std::fprintf(stderr, "%s\n", results.back().c_str());
      }
    }
  }
  const DeviceMemory memory = bench.engine().Memory().front();
  std::printf(
      "{\"device\": \"%s\", \"hidden\": %ld, \"intermediate\": %ld, \"dtype\": \"bf16\", "
      "\"lanes\": "
      "%ld, \"seconds\": %g, \"allocations_while_serving\": %ld, \"graph_bytes\": %ld,\n"
      "\"results\": [\n%s]}\n",
      DeviceName(memory.device).c_str(), static_cast<long>(arguments.hidden),
      static_cast<long>(arguments.intermediate), static_cast<long>(memory.lanes), arguments.seconds,
      static_cast<long>(Buffer::allocations() - allocations), static_cast<long>(memory.graphs),
      absl::StrJoin(results, ",\n").c_str());
  return differences == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fuseblock

int main(int argc, char** argv) { return fuseblock::Main(argc, argv); }
