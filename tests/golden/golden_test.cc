// Every norm, feed-forward, FFN path and lookup of the stored models, loaded as the server loads
// them and run on the CPU with `hf` rounding, against what transformers computed (data/; made by
// make_golden.py), in three dtypes. Both outputs must lie in the interval that eager_interval.h
// derives: transformers' own, which proves the interval, and ours.
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/model/loader.h"
#include "server/model/safetensors.h"
#include "tests/golden/eager_interval.h"
#include "tests/support/run_block.h"

namespace fuseblock::testing {
namespace {

// The checkpoint and one dtype's golden tensors.
class Golden {
 public:
  Golden(const std::string& family, DType dtype)
      : folder_(absl::StrCat("tests/golden/data/", family)),
        weights_(*SafetensorsFile::Open(folder_ + "/model.safetensors")),
        golden_(*SafetensorsFile::Open(
            absl::StrCat(folder_, "/golden_", FileName(dtype), ".safetensors"))) {}

  static std::string FileName(DType dtype) {
    return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
  }
  const std::string& folder() const { return folder_; }
  bool Has(const std::string& name) const { return golden_.header().count(name) != 0; }
  bool HasWeight(const std::string& name) const { return weights_.header().count(name) != 0; }

  // A golden tensor as rows of its last axis; int64 ids as a vector.
  RowTensor Rows(const std::string& name) const {
    const SafetensorsEntry& entry = golden_.header().at(name);
    RowTensor out;
    out.dtype = *DTypeFromSafetensors(entry.dtype);
    const int64_t columns = entry.shape.back();
    const int64_t bytes = static_cast<int64_t>(entry.end - entry.begin);
    const int64_t rows = bytes / SizeOf(out.dtype) / columns;
    out.dims = out.dtype == DType::kI64 ? std::vector<int64_t>{rows * columns}
                                        : std::vector<int64_t>{rows, columns};
    const auto data = golden_.file().bytes().subspan(entry.begin, entry.end - entry.begin);
    out.bytes.assign(reinterpret_cast<const char*>(data.data()), data.size());
    return out;
  }

  std::vector<double> Weight(const std::string& name) const {
    const ConstTensorView view = *weights_.Find(name);
    std::vector<double> out(static_cast<size_t>(view.elements()));
    VisitFloat(view.dtype, [&](auto type) {
      const auto* data = static_cast<const decltype(type)*>(view.data);
      for (size_t i = 0; i < out.size(); ++i) out[i] = ToFloat(data[i]);
    });
    return out;
  }

 private:
  std::string folder_;
  SafetensorsFile weights_, golden_;
};

// What is known of all comparisons of a family and dtype.
struct Tally {
  int64_t cells = 0, equal = 0, decided = 0;  // decided: the interval is one value
  double widest = 0;  // our largest distance from transformers, as a share of the interval
};

class GoldenTest : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  GoldenTest() : dtype_(std::get<1>(GetParam())), golden_(std::get<0>(GetParam()), dtype_) {}

  void SetUp() override {
    ModelOptions options;
    options.name = "m";
    options.path = golden_.folder();
    options.dtype = dtype_;
    options.rounding = Rounding::kHf;
    const absl::Status status = LoadModel(options, {Device{}}, registry_, nullptr);
    ASSERT_TRUE(status.ok()) << status;
  }

  void TearDown() override {
    const std::string text = absl::StrFormat(
        "%d cells, %.2f%% with transformers' bits, %.2f%% leave no choice, the largest distance is "
        "%.3g of its interval",
        tally_.cells, 100.0 * static_cast<double>(tally_.equal) / static_cast<double>(tally_.cells),
        100.0 * static_cast<double>(tally_.decided) / static_cast<double>(tally_.cells),
        tally_.widest);
    RecordProperty("agreement", text);
    std::printf("%s\n", text.c_str());
  }

  std::vector<RowTensor> Run(const std::string& part, std::vector<RowTensor> inputs) {
    const auto block = registry_.Find("m." + part, "");
    EXPECT_TRUE(block.ok()) << block.status();
    auto outputs = RunOnCpu(*(*block)->blocks[0], std::move(inputs));
    EXPECT_TRUE(outputs.ok()) << part << ": " << outputs.status();
    return outputs.ok() ? *std::move(outputs) : std::vector<RowTensor>(2);
  }

  // Row by row: `got` and the golden tensor of that name against the interval of the row.
  void Compare(const std::string& part, const RowTensor& got, const std::string& name,
               const std::vector<Row>& expected) {
    const RowTensor golden = golden_.Rows(name);
    ASSERT_EQ(got.dims, golden.dims) << part;
    const std::vector<float> ours = got.values(), theirs = golden.values();
    const size_t columns = static_cast<size_t>(golden.dims[1]);
    int64_t outside = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      const Interval& interval = expected[i / columns][i % columns];
      const auto inside = [&](double value) {
        return value >= interval.low && value <= interval.high;
      };
      ++tally_.cells;
      tally_.equal += ours[i] == theirs[i];
      tally_.decided += interval.low == interval.high;
      if (ours[i] != theirs[i]) {
        tally_.widest = std::max(
            tally_.widest, std::abs(double{ours[i]} - theirs[i]) / (interval.high - interval.low));
      }
      if (inside(ours[i]) && inside(theirs[i])) continue;
      if (++outside > 3) continue;
      ADD_FAILURE() << absl::StrFormat(
          "%s, %s, row %d, column %d: expected within [%.9g, %.9g], got %.9g, transformers %.9g",
          part, name, i / columns, i % columns, interval.low, interval.high, ours[i], theirs[i]);
    }
    EXPECT_EQ(outside, 0) << "cells of " << part << " outside their intervals";
  }

  std::vector<Row> Exact(const std::string& name) const {
    const RowTensor tensor = golden_.Rows(name);
    const std::vector<float> values = tensor.values();
    std::vector<Row> rows(static_cast<size_t>(tensor.dims[0]));
    const size_t columns = static_cast<size_t>(tensor.dims[1]);
    for (size_t i = 0; i < values.size(); ++i) rows[i / columns].push_back({values[i], values[i]});
    return rows;
  }

  std::vector<Row> Norm(const std::vector<Row>& x, const std::string& module) const {
    const std::vector<double> weight = golden_.Weight(module + ".weight");
    std::vector<Row> out;
    for (const Row& row : x) out.push_back(eager_.Norm(row, weight, kEps));
    return out;
  }

  std::vector<Row> Mlp(const std::vector<Row>& x, int64_t layer) const {
    const auto linear = [&](const char* name) {
      const std::string module = absl::StrCat("model.layers.", layer, ".mlp.", name, "_proj");
      return [this, weight = golden_.Weight(module + ".weight"),
              bias = golden_.HasWeight(module + ".bias") ? golden_.Weight(module + ".bias")
                                                         : std::vector<double>()](const Row& row) {
        return eager_.Linear(row, weight, bias);
      };
    };
    const auto gate = linear("gate"), up = linear("up"), down = linear("down");
    std::vector<Row> out;
    for (const Row& row : x) out.push_back(down(eager_.Gated(gate(row), up(row))));
    return out;
  }

  std::vector<Row> Add(const std::vector<Row>& x, const std::vector<Row>& y) const {
    std::vector<Row> out;
    for (size_t i = 0; i < x.size(); ++i) out.push_back(eager_.Add(x[i], y[i]));
    return out;
  }

  static constexpr double kEps = static_cast<double>(1e-6f);  // of every stored model
  static constexpr int64_t kLayers = 2;

  DType dtype_;
  Golden golden_;
  EagerArithmetic eager_{dtype_};
  BlockRegistry registry_;
  Tally tally_;
};

TEST_P(GoldenTest, Norms) {
  const auto check = [&](const std::string& part, const std::string& module) {
    for (const std::string prefix : {"norm.", "probe.norm."}) {
      const std::string name = prefix + module;
      if (!golden_.Has(name + ".input")) continue;
      Compare(part, Run(part, {golden_.Rows(name + ".input")})[0], name + ".output",
              Norm(Exact(name + ".input"), module));
    }
  };
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = absl::StrCat("layers.", i, ".");
    check(layer + "attn_norm", absl::StrCat("model.", layer, "input_layernorm"));
    check(layer + "ffn_norm", absl::StrCat("model.", layer, "post_attention_layernorm"));
  }
  check("final_norm", "model.norm");
}

TEST_P(GoldenTest, NormsOfASum) {
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = absl::StrCat("layer.", i, ".");
    const std::string part = absl::StrCat("layers.", i, ".ffn_norm");
    const std::vector<RowTensor> outputs =
        Run(part, {golden_.Rows(layer + "input"), golden_.Rows(layer + "attn.output")});
    const std::vector<Row> h = Add(Exact(layer + "input"), Exact(layer + "attn.output"));
    Compare(part, outputs[1], layer + "ffn.input", h);
    Compare(part, outputs[0], layer + "mlp.input",
            Norm(h, absl::StrCat("model.layers.", i, ".post_attention_layernorm")));
  }
}

TEST_P(GoldenTest, FeedForwards) {
  for (int64_t i = 0; i < kLayers; ++i) {
    for (const std::string prefix : {"", "probe."}) {
      const std::string name = absl::StrCat(prefix, "layer.", i, ".mlp");
      if (!golden_.Has(name + ".input")) continue;
      const std::string part = absl::StrCat("layers.", i, ".mlp");
      Compare(part, Run(part, {golden_.Rows(name + ".input")})[0], name + ".output",
              Mlp(Exact(name + ".input"), i));
    }
  }
}

TEST_P(GoldenTest, FfnPaths) {
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = absl::StrCat("layer.", i, ".");
    const std::string part = absl::StrCat("layers.", i, ".ffn_path");
    const std::vector<Row> h = Exact(layer + "ffn.input");
    const std::vector<Row> y =
        Add(h, Mlp(Norm(h, absl::StrCat("model.layers.", i, ".post_attention_layernorm")), i));
    Compare(part, Run(part, {golden_.Rows(layer + "ffn.input")})[0], layer + "ffn.output", y);
    const auto sum =
        Run(part, {golden_.Rows(layer + "input"), golden_.Rows(layer + "attn.output")});
    Compare(part, sum[0], layer + "ffn.output", y);
  }
}

TEST_P(GoldenTest, Lookup) {
  const RowTensor y = Run("embed", {golden_.Rows("input_ids")})[0];
  EXPECT_EQ(y.bytes, golden_.Rows("layer.0.input").bytes);
  tally_.cells = tally_.equal = tally_.decided = static_cast<int64_t>(y.values().size());
}

std::string CaseName(const ::testing::TestParamInfo<std::tuple<const char*, DType>>& instance) {
  return absl::StrCat(std::get<0>(instance.param), "_",
                      std::string(Name(std::get<1>(instance.param))));
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest,
                         ::testing::Combine(::testing::Values("llama", "llama_bias", "mistral",
                                                              "qwen2", "qwen3"),
                                            ::testing::ValuesIn(kFloatDTypes)),
                         CaseName);

}  // namespace
}  // namespace fuseblock::testing
