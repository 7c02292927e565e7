// From a folder to blocks that answer, and what stays as it was when a load fails.
#include "server/model/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/functional/function_ref.h"
#include "server/reason.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/run_block.h"

namespace fuseblock {
namespace {

using ::fuseblock::testing::EncodeValues;
using ::fuseblock::testing::FileTensor;
using ::fuseblock::testing::RowTensor;
using ::fuseblock::testing::RunOnCpu;
using ::fuseblock::testing::SafetensorsBytes;
using ::fuseblock::testing::TempFolder;
using ::fuseblock::testing::TinyLlama;
using ::fuseblock::testing::ValuesOf;
using ::testing::ElementsAre;

absl::Status Load(const ModelOptions& options, BlockRegistry& registry) {
  return LoadModel(options, {Device{}}, registry, nullptr);
}

ModelOptions Options(const TempFolder& folder) {
  ModelOptions options;
  options.name = "m";
  options.path = folder.path();
  return options;
}

std::vector<std::string> Names(const BlockRegistry& registry) {
  std::vector<std::string> out;
  for (const BlockStatus& status : registry.List()) out.push_back(status.name);
  return out;
}

// One row of multiples of 1/8, exact in every dtype.
RowTensor Row(int64_t columns, DType dtype) {
  std::vector<float> values;
  for (int64_t i = 0; i < columns; ++i) values.push_back(static_cast<float>(i % 7 - 3) / 8);
  return {dtype, {1, columns}, EncodeValues(values, dtype)};
}

std::string Answer(const BlockRegistry& registry, const std::string& name) {
  const auto found = registry.Find(name, "");
  EXPECT_TRUE(found.ok()) << found.status();
  if (!found.ok()) return "";
  const auto outputs =
      RunOnCpu(*(*found)->blocks[0], {Row((*found)->spec.hidden, (*found)->spec.dtype)});
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs.ok() ? (*outputs)[0].bytes : "";
}

// Shared matrices once, and each tensor rounded up to what an allocation takes.
TEST(LoaderTest, MeasuresWhatItWouldLoad) {
  TempFolder folder;
  const TinyLlama model;
  model.Write(folder);
  const auto units = MeasureModel(Options(folder));
  ASSERT_TRUE(units.ok()) << units.status();
  std::map<std::string, const ModelUnit*> by_name;
  for (const ModelUnit& unit : *units) by_name[unit.name] = &unit;
  ASSERT_EQ(by_name.size(), 4u);
  const auto rounded = [](int64_t elements) { return (elements * 4 + 255) / 256 * 256; };
  const int64_t norm = rounded(model.hidden);
  const int64_t matrix = rounded(model.hidden * model.intermediate);
  EXPECT_EQ(by_name.at("m.final_norm")->weight_bytes, norm);
  EXPECT_EQ(by_name.at("m.embed")->blocks.size(), 1u);
  for (const char* name : {"m.layers.0", "m.layers.1"}) {
    EXPECT_EQ(by_name.at(name)->blocks.size(), 4u);
    // attn_norm, ffn_norm and ffn_path's own; mlp and ffn_path share the matrices.
    EXPECT_EQ(by_name.at(name)->weight_bytes, 3 * norm + 3 * matrix);
  }
}

TEST(LoaderTest, APlacedUnitIsOnItsOwnDevicesOnly) {
  TempFolder folder;
  TinyLlama().Write(folder);
  ModelOptions options = Options(folder);
  options.parts = {"mlp"};
  options.places["m.layers.1"] = {};
  BlockRegistry registry;
  ASSERT_TRUE(Load(options, registry).ok());
  EXPECT_EQ((*registry.Find("m.layers.0.mlp", ""))->blocks.size(), 1u);
  EXPECT_TRUE((*registry.Find("m.layers.1.mlp", ""))->blocks.empty());
}

TEST(LoaderTest, LoadsEveryBlockOfTheModel) {
  TempFolder folder;
  TinyLlama().Write(folder);
  BlockRegistry registry;
  std::vector<std::string> prepared;
  const absl::Status status =
      LoadModel(Options(folder), {Device{}}, registry, [&](const ServedBlock& block, int blocks) {
        prepared.push_back(block.name);
        EXPECT_EQ(blocks, 10);
        // Nobody can ask for it yet.
        EXPECT_EQ(registry.Get(block.name)->state, BlockState::kLoading);
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(Names(registry),
              ElementsAre("m.embed", "m.final_norm", "m.layers.0.attn_norm", "m.layers.0.ffn_norm",
                          "m.layers.0.ffn_path", "m.layers.0.mlp", "m.layers.1.attn_norm",
                          "m.layers.1.ffn_norm", "m.layers.1.ffn_path", "m.layers.1.mlp"));
  EXPECT_EQ(prepared.size(), 10u);
  const auto block = *registry.Find("m.layers.1.ffn_path", "1");
  EXPECT_EQ(block->revision, 1);
  EXPECT_EQ(block->family, "llama");
  EXPECT_EQ(block->content_hash.size(), 64u);
  EXPECT_EQ(block->formula, Block::Formula(block->spec));
  EXPECT_EQ(block->inputs.size(), 2u);
  EXPECT_EQ(block->outputs.size(), 1u);
  ASSERT_EQ(block->blocks.size(), 1u);
  EXPECT_EQ(block->On(Device{}), block->blocks[0].get());
  EXPECT_EQ(block->On(Device{DeviceType::kCuda, 0}), nullptr);
}

TEST(LoaderTest, ComputesWithTheCheckpointsWeights) {
  TinyLlama model;
  model.mlp_bias = true;
  TempFolder folder;
  model.Write(folder);
  BlockRegistry registry;
  ASSERT_TRUE(Load(Options(folder), registry).ok());
  const std::vector<FileTensor> tensors = model.Tensors();
  const auto linear = [&](const std::string& name, const std::vector<double>& x) {
    const std::string full = "model.layers.1.mlp." + name;
    const std::vector<float> w = ValuesOf(tensors, full + ".weight");
    const std::vector<float> bias = ValuesOf(tensors, full + ".bias");
    std::vector<double> y(bias.begin(), bias.end());
    for (size_t i = 0; i < w.size(); ++i) y[i / x.size()] += w[i] * x[i % x.size()];
    return y;
  };
  const std::vector<float> row = Row(model.hidden, DType::kF32).values();
  const std::vector<double> x(row.begin(), row.end());
  std::vector<double> gate = linear("gate_proj", x);
  const std::vector<double> up = linear("up_proj", x);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  const std::vector<double> expected = linear("down_proj", gate);
  const RowTensor y{DType::kF32, {1, model.hidden}, Answer(registry, "m.layers.1.mlp")};
  ASSERT_EQ(y.values().size(), expected.size());
  // Sums of 8 and 12 products of magnitude below 2.
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(y.values()[i], expected[i], 40 * 0x1p-24);
  }
}

TEST(LoaderTest, ShardsPrefixesAndStorageDTypesGiveTheSameBits) {
  TinyLlama model;
  TempFolder one;
  model.Write(one);
  BlockRegistry expected;
  ASSERT_TRUE(Load(Options(one), expected).ok());
  const auto same = [&](const TempFolder& folder, const char* what) {
    BlockRegistry registry;
    ModelOptions options = Options(folder);
    options.dtype = DType::kF32;
    const absl::Status status = Load(options, registry);
    ASSERT_TRUE(status.ok()) << what << ": " << status;
    for (const char* block : {"m.layers.0.mlp", "m.layers.1.ffn_path", "m.final_norm"}) {
      EXPECT_EQ(Answer(registry, block), Answer(expected, block)) << what << " " << block;
    }
  };
  {
    TempFolder folder;
    folder.Write("config.json", model.Config());
    std::string map;
    const std::vector<FileTensor> tensors = model.Tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string shard = absl::StrCat("part-", i, ".safetensors");
      folder.Write(shard, SafetensorsBytes(std::vector<FileTensor>{tensors[i]}));
      absl::StrAppend(&map, map.empty() ? "" : ",", "\"", tensors[i].name, "\":\"", shard, "\"");
    }
    folder.Write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
    same(folder, "one shard for each tensor");
  }
  for (const char* base : {"", "base_model.model.model."}) {
    TempFolder folder;
    model.base = base;
    model.Write(folder);
    same(folder, base);
  }
  for (DType dtype : {DType::kBF16, DType::kF16}) {  // every weight is exact in both
    TempFolder folder;
    model.base = "model.";
    model.dtype = dtype;
    model.Write(folder);
    same(folder, "stored in 16 bits");
  }
}

TEST(LoaderTest, TheComputeDTypeIsTheOptionsThenTheConfigsThenTheFiles) {
  TinyLlama model;
  model.dtype = DType::kF16;
  TempFolder folder;
  model.Write(folder);
  const auto dtype = [&](std::optional<DType> wanted) {
    BlockRegistry registry;
    ModelOptions options = Options(folder);
    options.dtype = wanted;
    const absl::Status status = Load(options, registry);
    EXPECT_TRUE(status.ok()) << status;
    return (*registry.Find("m.embed", ""))->spec.dtype;
  };
  EXPECT_EQ(dtype(std::nullopt), DType::kF16);
  folder.Write("config.json", model.Config(R"(,"torch_dtype":"bfloat16")"));
  EXPECT_EQ(dtype(std::nullopt), DType::kBF16);
  EXPECT_EQ(dtype(DType::kF32), DType::kF32);
  // A dtype that is not served is no obstacle where another one is asked for.
  folder.Write("config.json", model.Config(R"(,"torch_dtype":"float64")"));
  EXPECT_EQ(dtype(DType::kF32), DType::kF32);
  BlockRegistry registry;
  EXPECT_EQ(Load(Options(folder), registry).code(), absl::StatusCode::kUnimplemented);
}

TEST(LoaderTest, LoadsOnlyTheLayersAndPartsAskedFor) {
  TempFolder folder;
  TinyLlama model;
  model.layers = 4;
  model.Write(folder);
  BlockRegistry registry;
  ModelOptions options = Options(folder);
  options.layers = "1-2";
  options.parts = {"mlp", "embed"};
  ASSERT_TRUE(Load(options, registry).ok());
  EXPECT_THAT(Names(registry), ElementsAre("m.embed", "m.layers.1.mlp", "m.layers.2.mlp"));
}

TEST(LoaderTest, APartOfACheckpointServesTheLayersThatItHas) {
  TempFolder folder;
  TinyLlama model;
  std::vector<FileTensor> tensors;
  for (const FileTensor& tensor : model.Tensors()) {
    if (tensor.name.find("layers.1.") != std::string::npos) tensors.push_back(tensor);
  }
  folder.Write("config.json", model.Config());
  folder.Write("model.safetensors", SafetensorsBytes(tensors));
  BlockRegistry registry;
  ModelOptions options = Options(folder);
  options.layers = "1";
  options.parts = {"attn_norm", "ffn_path"};
  const absl::Status status = Load(options, registry);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(LoaderTest, BlocksOfALayerHoldTheFeedForwardOnce) {
  TempFolder folder;
  TinyLlama().Write(folder);
  BlockRegistry both, only;
  ModelOptions options = Options(folder);
  options.layers = "0";
  options.parts = {"mlp", "ffn_path"};
  ASSERT_TRUE(Load(options, both).ok());
  options.parts = {"mlp"};
  ASSERT_TRUE(Load(options, only).ok());
  const auto bytes = [](const BlockRegistry& registry, const char* name) {
    return (*registry.Find(name, ""))->blocks[0]->weight_bytes();
  };
  const size_t mlp = bytes(only, "m.layers.0.mlp");
  EXPECT_GE(mlp, 3 * 8 * 12 * sizeof(float));
  const size_t norm = 8 * sizeof(float);
  EXPECT_EQ(bytes(both, "m.layers.0.mlp") + bytes(both, "m.layers.0.ffn_path"), mlp + norm);
  // One of the two goes, the other still answers with the weights that they shared.
  const std::string y = Answer(both, "m.layers.0.ffn_path");
  ASSERT_TRUE(both.Unload("m.layers.0.mlp", 0).ok());
  EXPECT_EQ(Answer(both, "m.layers.0.ffn_path"), y);
}

TEST(LoaderTest, TheContentHashFollowsWeightsAndSpecOnly) {
  TempFolder folder, other;
  TinyLlama model;
  model.Write(folder);
  BlockRegistry registry;
  ModelOptions options = Options(folder);
  options.name = "a";
  ASSERT_TRUE(Load(options, registry).ok());
  options.name = "b";
  options.revision = 7;
  ASSERT_TRUE(Load(options, registry).ok());
  options.name = "hf";
  options.rounding = Rounding::kHf;
  ASSERT_TRUE(Load(options, registry).ok());
  model.seed = 2;
  model.Write(other);
  options = Options(other);
  ASSERT_TRUE(Load(options, registry).ok());
  const auto hash = [&](const std::string& name) {
    return (*registry.Find(name, ""))->content_hash;
  };
  EXPECT_EQ(hash("a.layers.0.mlp"), hash("b.layers.0.mlp"));
  EXPECT_NE(hash("a.layers.0.mlp"), hash("a.layers.1.mlp"));
  EXPECT_NE(hash("a.layers.0.mlp"), hash("a.layers.0.ffn_path"));
  EXPECT_NE(hash("a.layers.0.mlp"), hash("hf.layers.0.mlp"));
  EXPECT_NE(hash("a.layers.0.mlp"), hash("m.layers.0.mlp"));
}

TEST(LoaderTest, RefusesBadOptions) {
  TempFolder folder;
  TinyLlama().Write(folder);
  struct Case {
    void (*change)(ModelOptions&);
    const char* error;
  };
  const Case cases[] = {
      {[](ModelOptions& o) { o.name = ""; },
       "model name: expected letters, digits, '_' and '-', got ''"},
      {[](ModelOptions& o) { o.name = "a.b"; },
       "model name: expected letters, digits, '_' and '-', got 'a.b'"},
      {[](ModelOptions& o) { o.revision = 0; }, "revision: expected a positive integer, got 0"},
      {[](ModelOptions& o) { o.layers = "0-2"; },
       "layers \"0-2\": expected layers from 0 to 1, got 2"},
      {[](ModelOptions& o) {
         o.parts = {"mlp", "attention"};
       },
       "parts: expected some of attn_norm, ffn_norm, mlp, ffn_path, embed, final_norm, got "
       "'attention'"},
      {[](ModelOptions& o) {
         o.parts = {"mlp", "embed", "mlp"};
       },
       "parts: 'mlp' is named twice"},
  };
  for (const Case& c : cases) {
    BlockRegistry registry;
    ModelOptions options = Options(folder);
    c.change(options);
    const absl::Status status = Load(options, registry);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), c.error);
    EXPECT_TRUE(registry.List().empty());
  }
  BlockRegistry registry;
  EXPECT_EQ(LoadModel(Options(folder), {}, registry, nullptr).message(),
            "devices: expected at least one");
}

TEST(LoaderTest, RefusesAFolderWithoutConfigAndFamiliesThatAreNotServed) {
  TempFolder folder;
  BlockRegistry registry;
  const std::string config = folder.File("config.json");
  EXPECT_EQ(Load(Options(folder), registry).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Load(Options(folder), registry).message(),
            config + ": cannot open: No such file or directory");
  folder.Write("config.json", R"({"model_type":"gemma"})");
  EXPECT_EQ(Load(Options(folder), registry).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(
      Load(Options(folder), registry).message(),
      config + ": model_type 'gemma' is not served; served are: llama, mistral, qwen2, qwen3");
}

// A model that serves while damaged ones are loaded beside it.
class FailedLoad : public ::testing::Test {
 protected:
  void SetUp() override {
    model_.Write(good_);
    ModelOptions options = Options(good_);
    options.name = "good";
    ASSERT_TRUE(Load(options, registry_).ok());
    expected_ = Answer(registry_, "good.layers.0.ffn_path");
    folder_.Write("config.json", model_.Config());
  }

  using Tensors = std::vector<FileTensor>;
  static FileTensor& Named(Tensors& tensors, const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [&](const FileTensor& tensor) { return tensor.name == name; });
  }
  // The damaged folder's tensors are the good one's after that change.
  void Damage(absl::FunctionRef<void(Tensors&)> change) {
    Tensors tensors = model_.Tensors();
    change(tensors);
    folder_.Write("model.safetensors", SafetensorsBytes(tensors));
  }

  // Loading the damaged folder gives that error (the folder's path before it), fails the blocks
  // with it, and leaves the good model as it was.
  void ExpectFailure(absl::StatusCode code, const std::string& error) {
    const absl::Status status = Load(Options(folder_), registry_);
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(std::string(status.message()), folder_.path() + error);
    const auto block = registry_.Get("m.layers.0.ffn_path");
    ASSERT_TRUE(block.ok());
    EXPECT_EQ(block->state, BlockState::kFailed);
    EXPECT_EQ(block->reason, status.message());
    EXPECT_EQ(Answer(registry_, "good.layers.0.ffn_path"), expected_);
  }

  TinyLlama model_;
  TempFolder good_, folder_;
  BlockRegistry registry_;
  std::string expected_;
};

TEST_F(FailedLoad, TruncatedFile) {
  const std::string bytes = SafetensorsBytes(model_.Tensors());
  folder_.Write("model.safetensors", bytes.substr(0, bytes.size() - 4));
  ExpectFailure(
      absl::StatusCode::kInvalidArgument,
      "/model.safetensors: tensor 'model.norm.weight': data_offsets [3264, 3296] end outside "
      "the file's 3292 bytes of data (is it truncated?)");
}

TEST_F(FailedLoad, MissingTensor) {
  Damage([](Tensors& tensors) { tensors.pop_back(); });
  ExpectFailure(absl::StatusCode::kNotFound, "/model.safetensors: no tensor 'model.norm.weight'");
}

TEST_F(FailedLoad, WrongShapeInTheLastLayer) {
  Damage([](Tensors& tensors) {
    Named(tensors, "model.layers.1.mlp.up_proj.weight").shape = {8, 12};
  });
  ExpectFailure(
      absl::StatusCode::kInvalidArgument,
      "/model.safetensors: tensor 'model.layers.1.mlp.up_proj.weight': expected shape [12, "
      "8], got [8, 12]");
}

TEST_F(FailedLoad, UnexpectedDType) {
  Damage([](Tensors& tensors) {
    FileTensor& tensor = Named(tensors, "model.layers.0.mlp.gate_proj.weight");
    tensor.dtype = "F8_E4M3";
    tensor.bytes.resize(8 * 12);
  });
  ExpectFailure(
      absl::StatusCode::kInvalidArgument,
      "/model.safetensors: tensor 'model.layers.0.mlp.gate_proj.weight': expected F32, F16 "
      "or BF16, got F8_E4M3");
}

TEST_F(FailedLoad, IndexThatLeavesTheFolder) {
  folder_.Write("model.safetensors.index.json",
                R"({"weight_map":{"model.norm.weight":"../model.safetensors"}})");
  ExpectFailure(absl::StatusCode::kInvalidArgument,
                "/model.safetensors.index.json: tensor 'model.norm.weight': expected the name of a "
                ".safetensors file in this folder, got \"../model.safetensors\"");
}

TEST_F(FailedLoad, TensorOfAnotherArithmetic) {
  Damage([](Tensors& tensors) {
    tensors.push_back({"model.layers.1.mlp.gate_proj.bias", "F32", {12}, std::string(48, '\0')});
  });
  ExpectFailure(
      absl::StatusCode::kInvalidArgument,
      "/model.safetensors: tensor 'model.layers.1.mlp.gate_proj.bias': a llama model with "
      "this config has no such tensor in a layer");
}

TEST_F(FailedLoad, ARepairedFolderLoadsAfterwards) {
  ExpectFailure(absl::StatusCode::kNotFound,
                ": expected model.safetensors or model.safetensors.index.json, got neither");
  folder_.Write("model.safetensors", SafetensorsBytes(model_.Tensors()));
  EXPECT_TRUE(Load(Options(folder_), registry_).ok());
  EXPECT_EQ(Answer(registry_, "m.layers.0.ffn_path"), expected_);
}

TEST(LoaderTest, NothingIsPublishedWhenPrepareRefusesTheLastBlock) {
  TempFolder folder;
  TinyLlama().Write(folder);
  BlockRegistry registry;
  int seen = 0;
  const absl::Status status =
      LoadModel(Options(folder), {Device{}}, registry, [&](const ServedBlock&, int) {
        return ++seen == 10 ? absl::ResourceExhaustedError("lanes: no room") : absl::OkStatus();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const BlockStatus& block : registry.List()) {
    EXPECT_EQ(block.state, BlockState::kFailed) << block.name;
    EXPECT_EQ(block.reason, "lanes: no room") << block.name;
  }
}

TEST(LoaderTest, AFailedRevisionLeavesTheOldOneAnswering) {
  TempFolder folder, broken;
  TinyLlama model;
  model.Write(folder);
  BlockRegistry registry;
  ASSERT_TRUE(Load(Options(folder), registry).ok());
  const std::string before = Answer(registry, "m.layers.0.mlp");
  ModelOptions second = Options(broken);
  second.revision = 2;
  broken.Write("config.json", model.Config());
  EXPECT_FALSE(Load(second, registry).ok());
  EXPECT_EQ(registry.Get("m.layers.0.mlp")->state, BlockState::kReady);
  EXPECT_EQ(Answer(registry, "m.layers.0.mlp"), before);
  // The same revision again, and then a good second one.
  EXPECT_EQ(Load(Options(folder), registry).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Answer(registry, "m.layers.0.mlp"), before);
  model.seed = 2;
  model.Write(broken);
  ASSERT_TRUE(Load(second, registry).ok());
  EXPECT_NE(Answer(registry, "m.layers.0.mlp"), before);
  EXPECT_THAT(registry.Get("m.layers.0.mlp")->revisions, ElementsAre(1, 2));
}

}  // namespace
}  // namespace fuseblock
