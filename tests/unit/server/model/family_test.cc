// The table of families, and the Llama family: which configs and layers it takes and which it
// refuses.
#include "server/model/family.h"

#include <gtest/gtest.h>

#include "tests/support/checkpoint_files.h"

namespace fuseblock {
namespace {

using ::fuseblock::testing::FileTensor;
using ::fuseblock::testing::SafetensorsBytes;
using ::fuseblock::testing::TempFolder;
using ::fuseblock::testing::TinyLlama;

TEST(FamilyTest, KnowsTheLlamaKin) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    EXPECT_TRUE(FindFamily(type).ok()) << type;
  }
}

TEST(FamilyTest, RefusesOtherTypesByName) {
  // Among them some that look like Llama's kin and compute otherwise.
  for (const char* type :
       {"gemma", "granite", "olmo2", "mixtral", "qwen2_moe", "phi3", "Llama", ""}) {
    const auto family = FindFamily(type);
    EXPECT_EQ(family.status().code(), absl::StatusCode::kUnimplemented) << type;
    EXPECT_EQ(family.status().message(), std::string("model_type '") + type +
                                             "' is not served; served are: llama, mistral, qwen2, "
                                             "qwen3");
  }
}

absl::Status CheckText(const std::string& text) {
  const auto config = ModelConfig::Parse(text, "config.json");
  if (!config.ok()) return config.status();
  return (*FindFamily(config->model_type()))->check_config(*config);
}

TEST(LlamaConfigTest, TakesItsOwnAndFieldsThatChangeNothing) {
  TinyLlama model;
  EXPECT_TRUE(CheckText(model.Config()).ok()) << CheckText(model.Config());
  model.mlp_bias = true;
  EXPECT_TRUE(CheckText(model.Config()).ok());
  model.mlp_bias = false;
  for (const char* type : {"mistral", "qwen2", "qwen3"}) {
    model.model_type = type;
    EXPECT_TRUE(CheckText(model.Config()).ok()) << CheckText(model.Config());
  }
  EXPECT_TRUE(
      CheckText(model.Config(R"(,"sliding_window":4096,"rope_theta":1e6,"attention_bias":)"
                             R"(true,"residual_multiplier":1.0,"quantization_config":null)"))
          .ok());
}

TEST(LlamaConfigTest, RefusesFieldsThatChangeTheArithmeticByName) {
  const std::pair<const char*, const char*> fields[] = {
      {"hidden_activation", "\"gelu_pytorch_tanh\""},
      {"residual_multiplier", "0.22"},
      {"embedding_multiplier", "12.0"},
      {"swiglu_limit", "7.0"},
      {"num_local_experts", "8"},
      {"num_experts", "4"},
      {"auto_map", "{\"AutoModel\":\"modeling_x.X\"}"},
      {"quantization_config", "{\"quant_method\":\"gptq\"}"},
  };
  for (const auto& [field, value] : fields) {
    const absl::Status status =
        CheckText(TinyLlama().Config(absl::StrCat(",\"", field, "\":", value)));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << field;
    EXPECT_EQ(status.message(), absl::StrCat("config.json: ", field, " ", value,
                                             " is not served: it changes the arithmetic of a llama "
                                             "model in a way that this family does not define"));
  }
}

TEST(LlamaConfigTest, OnlyLlamaMayHaveBiases) {
  TinyLlama model;
  model.mlp_bias = true;
  for (const char* type : {"mistral", "qwen2", "qwen3"}) {
    model.model_type = type;
    EXPECT_EQ(
        CheckText(model.Config()).message(),
        absl::StrCat("config.json: mlp_bias true is not served: it changes the arithmetic of a ",
                     type, " model in a way that this family does not define"));
  }
}

TEST(LlamaConfigTest, RefusesEachFieldThatIsMissingOrWrong) {
  struct Case {
    const char *from, *to, *error;
  };
  const Case cases[] = {
      {"\"hidden_act\":\"silu\"", "\"hidden_act\":\"gelu\"",
       "config.json: hidden_act \"gelu\" is not served: expected silu"},
      {"\"hidden_act\":\"silu\",", "", "config.json: hidden_act: expected a string, got nothing"},
      {"\"hidden_size\":8,", "",
       "config.json: hidden_size: expected an integer from 1 to 2147483648, got nothing"},
      {"\"intermediate_size\":12", "\"intermediate_size\":0",
       "config.json: intermediate_size: expected an integer from 1 to 2147483648, got 0"},
      {"\"vocab_size\":10", "\"vocab_size\":\"10\"",
       "config.json: vocab_size: expected an integer from 1 to 2147483648, got \"10\""},
      {"\"num_hidden_layers\":2", "\"num_hidden_layers\":10001",
       "config.json: num_hidden_layers: expected an integer from 1 to 10000, got 10001"},
      {"\"rms_norm_eps\":1e-05", "\"rms_norm_eps\":0",
       "config.json: rms_norm_eps: expected a positive number, got 0"},
      {"\"mlp_bias\":false", "\"mlp_bias\":1",
       "config.json: mlp_bias: expected true or false, got 1"},
  };
  for (const Case& c : cases) {
    std::string text = TinyLlama().Config();
    const size_t at = text.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from << " in " << text;
    text.replace(at, strlen(c.from), c.to);
    EXPECT_EQ(CheckText(text).message(), c.error);
  }
}

// A tiny Llama on disk with its parsed parts.
class LlamaPlanTest : public ::testing::Test {
 protected:
  void Open(const std::vector<FileTensor>& tensors, Rounding rounding = Rounding::kFused) {
    file_ = folder_.Write("model.safetensors", SafetensorsBytes(tensors));
    config_ = *ModelConfig::Parse(model_.Config(), "config.json");
    checkpoint_.emplace(*Checkpoint::Open(folder_.path()));
    context_.emplace(PlanContext{*config_, *checkpoint_, model_.base, DType::kBF16, rounding});
  }
  absl::StatusOr<BlockPlan> Plan(std::string_view part, int64_t layer) {
    return kLlamaFamily.plan(*context_, part, layer);
  }

  TempFolder folder_;
  TinyLlama model_;
  std::string file_;
  std::optional<ModelConfig> config_;
  std::optional<Checkpoint> checkpoint_;
  std::optional<PlanContext> context_;
};

TEST_F(LlamaPlanTest, GivesEachPartItsSpecAndWeights) {
  const std::vector<FileTensor> tensors = model_.Tensors();
  Open(tensors);
  const auto bytes = [&](const std::string& name) {
    for (const FileTensor& tensor : tensors) {
      if (tensor.name == "model." + name) return tensor.bytes;
    }
    return std::string("no such tensor");
  };
  const auto text = [](const std::optional<ConstTensorView>& view) {
    if (!view.has_value()) return std::string();
    const absl::Span<const std::byte> all = TensorBytes(*view);
    return std::string(reinterpret_cast<const char*>(all.data()), all.size());
  };
  const BlockPlan path = *Plan("ffn_path", 1);
  EXPECT_EQ(path.spec.kind, BlockKind::kFfnPath);
  EXPECT_EQ(path.spec.dtype, DType::kBF16);
  EXPECT_EQ(path.spec.hidden, 8);
  EXPECT_EQ(path.spec.intermediate, 12);
  EXPECT_EQ(path.spec.norm.eps, 1e-5f);
  EXPECT_EQ(path.spec.norm.weight_offset, 0.0f);
  EXPECT_EQ(path.spec.activation, Activation::kSilu);
  EXPECT_EQ(text(path.weights.norm), bytes("layers.1.post_attention_layernorm.weight"));
  EXPECT_EQ(text(path.weights.gate), bytes("layers.1.mlp.gate_proj.weight"));
  EXPECT_EQ(text(path.weights.up), bytes("layers.1.mlp.up_proj.weight"));
  EXPECT_EQ(text(path.weights.down), bytes("layers.1.mlp.down_proj.weight"));
  EXPECT_EQ(path.formula, Block::Formula(path.spec));

  const BlockPlan mlp = *Plan("mlp", 0);
  EXPECT_EQ(mlp.spec.kind, BlockKind::kMlp);
  EXPECT_FALSE(mlp.weights.norm.has_value());
  EXPECT_EQ(text(mlp.weights.gate), bytes("layers.0.mlp.gate_proj.weight"));

  EXPECT_EQ(text(Plan("ffn_norm", 0)->weights.norm),
            bytes("layers.0.post_attention_layernorm.weight"));
  EXPECT_EQ(text(Plan("attn_norm", 0)->weights.norm), bytes("layers.0.input_layernorm.weight"));
  EXPECT_EQ(text(Plan("final_norm", -1)->weights.norm), bytes("norm.weight"));
  for (const char* part : {"ffn_norm", "attn_norm", "final_norm"}) {
    EXPECT_EQ(Plan(part, 0)->spec.kind, BlockKind::kNormResidual);
    EXPECT_EQ(Plan(part, 0)->spec.intermediate, 0);
  }
  const BlockPlan embed = *Plan("embed", -1);
  EXPECT_EQ(embed.spec.kind, BlockKind::kEmbedding);
  EXPECT_EQ(embed.spec.vocabulary, 10);
  EXPECT_EQ(embed.spec.embedding_scale, 1.0f);
  EXPECT_EQ(text(embed.weights.table), bytes("embed_tokens.weight"));
}

TEST_F(LlamaPlanTest, RoundsTheNormAsTheModeSays) {
  Open(model_.Tensors(), Rounding::kFused);
  EXPECT_EQ(Plan("ffn_norm", 0)->spec.norm.form, RmsNormForm::kOnce);
  EXPECT_EQ(Plan("ffn_norm", 0)->spec.rounding, Rounding::kFused);
  Open(model_.Tensors(), Rounding::kHf);
  for (const char* part : {"ffn_norm", "attn_norm", "final_norm", "ffn_path"}) {
    EXPECT_EQ(Plan(part, 0)->spec.norm.form, RmsNormForm::kNormalisedFirst) << part;
    EXPECT_EQ(Plan(part, 0)->spec.rounding, Rounding::kHf) << part;
  }
}

TEST_F(LlamaPlanTest, TakesBiases) {
  model_.mlp_bias = true;
  Open(model_.Tensors());
  EXPECT_TRUE(kLlamaFamily.check_layer(*context_, 0).ok());
  const BlockPlan plan = *Plan("mlp", 0);
  EXPECT_EQ(Describe(*plan.weights.gate_bias), "[12] FP32");
  EXPECT_EQ(Describe(*plan.weights.up_bias), "[12] FP32");
  EXPECT_EQ(Describe(*plan.weights.down_bias), "[8] FP32");
  EXPECT_EQ(plan.formula, Block::Formula(plan.spec) + "; gate, up and down each add their bias");
}

TEST_F(LlamaPlanTest, RefusesMissingAndMisshapenTensors) {
  std::vector<FileTensor> tensors = model_.Tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name.find("layers.1") != std::string::npos ||
        tensors[i].name.find("self_attn") != std::string::npos) {
      continue;
    }
    std::vector<FileTensor> broken = tensors;
    broken.erase(broken.begin() + static_cast<ptrdiff_t>(i));
    Open(broken);
    std::string messages;
    for (const char* part : {"embed", "final_norm", "attn_norm", "ffn_norm", "mlp", "ffn_path"}) {
      const auto plan = Plan(part, 0);
      if (plan.ok()) continue;
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kNotFound);
      EXPECT_EQ(plan.status().message(), file_ + ": no tensor '" + tensors[i].name + "'");
      absl::StrAppend(&messages, plan.status().message());
    }
    EXPECT_NE(messages, "") << tensors[i].name;
  }
  for (FileTensor& tensor : tensors) {
    if (tensor.name == "model.layers.0.mlp.down_proj.weight")
      std::swap(tensor.shape[0], tensor.shape[1]);
  }
  Open(tensors);
  EXPECT_EQ(Plan("mlp", 0).status().message(),
            file_ +
                ": tensor 'model.layers.0.mlp.down_proj.weight': expected shape [8, 12], got "
                "[12, 8]");
}

TEST_F(LlamaPlanTest, RefusesTensorsThatMeanAnotherArithmetic) {
  for (const char* name : {"mlp.gate_proj.bias", "mlp.gate_proj.weight_scale",
                           "mlp.experts.0.w1.weight", "pre_feedforward_layernorm.weight",
                           "post_attention_layernorm.bias", "mlp.gate_proj.lora_A.weight"}) {
    std::vector<FileTensor> tensors = model_.Tensors();
    const std::string full = std::string("model.layers.1.") + name;
    tensors.push_back({full, "F32", {1}, std::string(4, '\0')});
    tensors.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", "F32", {1}, "1234"});
    Open(tensors);
    EXPECT_TRUE(kLlamaFamily.check_layer(*context_, 0).ok());
    EXPECT_EQ(kLlamaFamily.check_layer(*context_, 1).message(),
              file_ + ": tensor '" + full +
                  "': a llama model with this config has no such tensor in a layer");
  }
}

}  // namespace
}  // namespace fuseblock
