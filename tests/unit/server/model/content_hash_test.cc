// The content hash: equal for equal content wherever it lies, different for every difference.
#include "server/model/content_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace fuseblock {
namespace {

BlockSpec MlpSpec() {
  BlockSpec spec;
  spec.kind = BlockKind::kMlp;
  spec.hidden = 4;
  spec.intermediate = 2;
  return spec;
}

std::string HashOf(const BlockSpec& spec, const BlockWeights& weights,
                   const ParallelFor& parallel_for = {}) {
  return ContentHasher(parallel_for).Hash(spec, weights);
}

TEST(ContentHashTest, IsSha256InHexadecimal) {
  const std::string hash = HashOf(MlpSpec(), {});
  EXPECT_EQ(hash.size(), 64u);
  EXPECT_EQ(hash.find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(ContentHashTest, DependsOnContentAndNotOnWhereItLies) {
  std::vector<float> data(10'000'000 / 4, 1.5f);  // more than one chunk, the last one partial
  std::vector<float> copy = data;
  const int64_t n = static_cast<int64_t>(data.size()) / 4;
  BlockWeights weights;
  weights.gate = ConstTensorView(data.data(), DType::kF32, {n, 4});
  const std::string hash = HashOf(MlpSpec(), weights);
  weights.gate = ConstTensorView(copy.data(), DType::kF32, {n, 4});
  EXPECT_EQ(HashOf(MlpSpec(), weights), hash);
  for (size_t at : {size_t{0}, copy.size() / 2, copy.size() - 1}) {  // one bit in any chunk
    copy[at] = 1.5000001f;
    EXPECT_NE(HashOf(MlpSpec(), weights), hash) << at;
    copy[at] = 1.5f;
  }
  EXPECT_EQ(HashOf(MlpSpec(), weights), hash);
}

TEST(ContentHashTest, DoesNotDependOnThreads) {
  std::vector<char> data(9 << 20, 'w');
  BlockWeights weights;
  weights.table = ConstTensorView(data.data(), DType::kBF16, {(9 << 20) / 8, 4});
  ParallelFor backwards;  // a pool that runs the tasks in another order
  backwards.threads = 2;
  backwards.run = [](void*, int64_t tasks, absl::FunctionRef<void(int64_t)> task) {
    for (int64_t i = tasks - 1; i >= 0; --i) task(i);
  };
  EXPECT_EQ(HashOf(MlpSpec(), weights, backwards), HashOf(MlpSpec(), weights));
}

TEST(ContentHashTest, TellsEveryDifferenceApart) {
  const float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const ConstTensorView view(data, DType::kF32, {2, 4});
  std::set<std::string> hashes;
  size_t count = 0;
  const auto add = [&](const BlockSpec& spec, const BlockWeights& weights) {
    hashes.insert(HashOf(spec, weights));
    EXPECT_EQ(hashes.size(), ++count);
  };
  BlockWeights weights;
  add(MlpSpec(), weights);
  for (auto role : {&BlockWeights::norm, &BlockWeights::gate, &BlockWeights::up,
                    &BlockWeights::down, &BlockWeights::gate_bias, &BlockWeights::up_bias,
                    &BlockWeights::down_bias, &BlockWeights::table}) {
    BlockWeights one;
    one.*role = view;
    add(MlpSpec(), one);
  }
  weights.gate = ConstTensorView(data, DType::kF32, {4, 2});
  add(MlpSpec(), weights);
  weights.gate = ConstTensorView(data, DType::kF16, {4, 4});
  add(MlpSpec(), weights);
  weights.gate = ConstTensorView(data, DType::kBF16, {4, 4});
  add(MlpSpec(), weights);
  const auto with = [&](auto change) {
    BlockSpec spec = MlpSpec();
    change(spec);
    add(spec, {});
  };
  with([](BlockSpec& s) { s.kind = BlockKind::kFfnPath; });
  with([](BlockSpec& s) { s.dtype = DType::kBF16; });
  with([](BlockSpec& s) { s.hidden = 5; });
  with([](BlockSpec& s) { s.intermediate = 3; });
  with([](BlockSpec& s) { s.vocabulary = 7; });
  with([](BlockSpec& s) { s.norm.eps = 1.0000001e-6f; });
  with([](BlockSpec& s) { s.norm.weight_offset = 1; });
  with([](BlockSpec& s) { s.norm.form = RmsNormForm::kNormalisedFirst; });
  with([](BlockSpec& s) { s.activation = Activation::kGeluTanh; });
  with([](BlockSpec& s) { s.activation = Activation::kGeluErf; });
  with([](BlockSpec& s) { s.gated = false; });
  with([](BlockSpec& s) { s.rounding = Rounding::kHf; });
  with([](BlockSpec& s) { s.embedding_scale = 8; });
}

TEST(ContentHashTest, ReadsSharedWeightsOnce) {
  std::vector<char> data(1 << 20, 'w');
  BlockWeights weights;
  weights.gate = ConstTensorView(data.data(), DType::kBF16, {1 << 10, 1 << 9});
  int reads = 0;
  ParallelFor counting;
  counting.threads = 2;
  counting.pool = &reads;
  counting.run = [](void* pool, int64_t tasks, absl::FunctionRef<void(int64_t)> task) {
    *static_cast<int*>(pool) += static_cast<int>(tasks);
    for (int64_t i = 0; i < tasks; ++i) task(i);
  };
  weights.gate->shape[0] = 1 << 14;  // 16 MiB would be 4 tasks
  data.resize(16 << 20);
  weights.gate->data = data.data();
  ContentHasher hasher(counting);
  BlockSpec path = MlpSpec();
  path.kind = BlockKind::kFfnPath;
  const std::string mlp = hasher.Hash(MlpSpec(), weights);
  EXPECT_NE(hasher.Hash(path, weights), mlp);
  EXPECT_EQ(reads, 4);
}

}  // namespace
}  // namespace fuseblock
