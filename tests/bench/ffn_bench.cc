// Times the FFN path on the CPU: Block::Run beside the time that reading its weights takes on the
// same threads, so that a regression shows as a ratio whatever the machine's speed is today.
//
//   fuseblock_bench_ffn [HIDDEN INTERMEDIATE [THREADS...]]        default: 576 1536 1 2
//
// Several layers are run in turn, as in serving, so that no run finds its weights in the caches
// near the core. Each figure is the median over rounds in which block and floor alternate.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/half.h"
#include "kernels/block/block.h"
#include "server/engine/cpu_team.h"

namespace fuseblock {
namespace {

constexpr int64_t kTokens[] = {1, 4, 16, 64, 256};
constexpr int kLayers = 8;
constexpr double kSecondsPerCell = 0.5;
constexpr int64_t kPiece = 256 << 10;  // bytes that a task of the floor reads

double Microseconds(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2,
                   values.end());
  return values[values.size() / 2];
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Require(absl::StatusOr<T> value) {
  Require(value.status());
  return *std::move(value);
}

// Host memory with normal values of about that magnitude in the dtype.
struct Tensor {
  Buffer buffer;
  TensorView view;
};

Tensor Random(DType dtype, std::initializer_list<int64_t> dims, float scale) {
  Tensor tensor;
  tensor.view = TensorView(nullptr, dtype, dims);
  const int64_t count = tensor.view.elements();
  tensor.buffer =
      Require(Buffer::Allocate(MemoryKind::kHost, static_cast<size_t>(count * SizeOf(dtype))));
  tensor.view.data = tensor.buffer.data();
  std::minstd_rand bits(1);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  VisitFloat(dtype, [&](auto type) {
    auto* out = reinterpret_cast<decltype(type)*>(tensor.buffer.data());
    for (int64_t i = 0; i < count; ++i) out[i] = FromFloat<decltype(type)>(uniform(bits));
  });
  return tensor;
}

std::vector<std::unique_ptr<const Block>> Layers(const BlockSpec& spec,
                                                 const ParallelFor& threads) {
  const float scale = 1.0f / 16;
  const Tensor gate = Random(spec.dtype, {spec.intermediate, spec.hidden}, scale);
  const Tensor up = Random(spec.dtype, {spec.intermediate, spec.hidden}, scale);
  const Tensor down = Random(spec.dtype, {spec.hidden, spec.intermediate}, scale);
  const Tensor norm = Random(spec.dtype, {spec.hidden}, 1.0f);
  BlockWeights weights;
  weights.gate = gate.view;
  weights.up = up.view;
  weights.down = down.view;
  weights.norm = norm.view;
  std::vector<std::unique_ptr<const Block>> layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back(Require(Block::Create(spec, weights, Device(), threads)));
  }
  return layers;
}

// Reads the bytes once, in contiguous pieces.
uint64_t ReadAll(const Buffer& buffer, const ParallelFor& threads) {
  const int64_t words = static_cast<int64_t>(buffer.size() / sizeof(uint64_t));
  const int64_t piece = kPiece / static_cast<int64_t>(sizeof(uint64_t));
  const auto* data = reinterpret_cast<const uint64_t*>(buffer.data());
  std::atomic<uint64_t> total{0};
  threads((words + piece - 1) / piece, [&](int64_t task) {
    uint64_t sum = 0;
    for (int64_t i = task * piece; i < std::min(words, (task + 1) * piece); ++i) sum += data[i];
    total += sum;
  });
  return total;
}

void Measure(const BlockSpec& spec, int thread_count) {
  CpuTeam team(thread_count);
  const ParallelFor threads = team.parallel_for();
  const ExecutionContext context{Device(), nullptr, threads};
  const std::vector<std::unique_ptr<const Block>> layers = Layers(spec, threads);
  std::vector<Buffer> copies;  // as many bytes as each layer's weights
  for (const auto& layer : layers) {
    copies.push_back(Require(Buffer::Allocate(MemoryKind::kHost, layer->weight_bytes())));
    std::fill_n(copies.back().data(), copies.back().size(), std::byte{1});
  }
  uint64_t sink = 0;
  for (const int64_t tokens : kTokens) {
    const Tensor x = Random(spec.dtype, {tokens, spec.hidden}, 1.0f);
    const Tensor residual = Random(spec.dtype, {tokens, spec.hidden}, 1.0f);
    const Tensor y = Random(spec.dtype, {tokens, spec.hidden}, 1.0f);
    const size_t bytes = layers[0]->WorkspaceBytes(tokens);
    Buffer memory = Require(Buffer::Allocate(MemoryKind::kHost, bytes + 256));
    const size_t skip = -reinterpret_cast<uintptr_t>(memory.data()) % 256;
    const absl::Span<std::byte> workspace(memory.data() + skip, bytes);
    const ConstTensorView inputs[] = {x.view, residual.view};
    std::vector<double> run, floor;
    double spent = 0;
    for (size_t round = 0; spent < kSecondsPerCell * 1e6 || round < 3 * layers.size(); ++round) {
      const size_t layer = round % layers.size();
      floor.push_back(Microseconds([&] { sink += ReadAll(copies[layer], threads); }));
      run.push_back(Microseconds([&] {
        Require(layers[layer]->Run(context, inputs, absl::MakeConstSpan(&y.view, 1), workspace));
      }));
      spent += floor.back() + run.back();
    }
    const double us = Median(run);
    const double floor_us = Median(floor);
    const double flop = 6.0 * static_cast<double>(tokens * spec.hidden * spec.intermediate);
    std::printf("%-5s %7d %7lld %10.1f %10.1f %6.2f %9.1f %9.1f\n",
                std::string(Name(spec.dtype)).c_str(), thread_count, static_cast<long long>(tokens),
                us, floor_us, floor_us / us,
                static_cast<double>(layers[0]->weight_bytes()) / us * 1e-3, flop / us * 1e-3);
    std::fflush(stdout);
  }
  if (sink == 42) std::puts("");  // the reads are used
}

int Main(int argc, char** argv) {
  BlockSpec spec;
  spec.kind = BlockKind::kFfnPath;
  spec.hidden = argc > 2 ? std::atoll(argv[1]) : 576;
  spec.intermediate = argc > 2 ? std::atoll(argv[2]) : 1536;
  std::vector<int> threads;
  for (int i = 3; i < argc; ++i) threads.push_back(std::atoi(argv[i]));
  if (threads.empty()) threads = {1, 2};
  if (argc == 2 || spec.hidden <= 0 || spec.intermediate <= 0 ||
      *std::min_element(threads.begin(), threads.end()) <= 0) {
    std::fprintf(stderr, "usage: %s [HIDDEN INTERMEDIATE [THREADS...]]\n", argv[0]);
    return 2;
  }
  std::printf("FFN path %lld / %lld, %d layers in turn, median\n",
              static_cast<long long>(spec.hidden), static_cast<long long>(spec.intermediate),
              kLayers);
  std::printf("dtype threads  tokens    time us   floor us  ratio  weights GB/s  GFLOP/s\n");
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    spec.dtype = dtype;
    for (const int count : threads) Measure(spec, count);
  }
  return 0;
}

}  // namespace
}  // namespace fuseblock

int main(int argc, char** argv) { return fuseblock::Main(argc, argv); }
