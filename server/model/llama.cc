// The Llama family: RMSNorm before each branch, a SwiGLU feed-forward, sequential residuals.
// Sources: transformers' modeling_llama.py, modeling_mistral.py, modeling_qwen2.py and
// modeling_qwen3.py, whose norms and feed-forwards are the same; only Llama's may have biases.
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/model/family.h"
#include "server/model/json.h"

namespace fuseblock {
namespace {

constexpr int64_t kSizeMax = int64_t{1} << 31;
constexpr int64_t kLayersMax = 10'000;

constexpr std::string_view kLayerParts[] = {"attn_norm", "ffn_norm", "mlp", "ffn_path"};
constexpr std::string_view kModelParts[] = {"embed", "final_norm"};

struct Sizes {
  int64_t hidden, intermediate, vocabulary;
};

absl::StatusOr<Sizes> ReadSizes(const ModelConfig& config) {
  const auto hidden = config.Size("hidden_size", kSizeMax);
  if (!hidden.ok()) return hidden.status();
  const auto intermediate = config.Size("intermediate_size", kSizeMax);
  if (!intermediate.ok()) return intermediate.status();
  const auto vocabulary = config.Size("vocab_size", kSizeMax);
  if (!vocabulary.ok()) return vocabulary.status();
  return Sizes{*hidden, *intermediate, *vocabulary};
}

absl::Status CheckConfig(const ModelConfig& config) {
  const auto sizes = ReadSizes(config);
  if (!sizes.ok()) return sizes.status();
  const auto layers = config.Size("num_hidden_layers", kLayersMax);
  if (!layers.ok()) return layers.status();
  const auto eps = config.PositiveFloat("rms_norm_eps");
  if (!eps.ok()) return eps.status();
  const auto activation = config.String("hidden_act");
  if (!activation.ok()) return activation.status();
  if (*activation != "silu") return config.Unsupported("hidden_act", "expected silu");
  const auto bias = config.Flag("mlp_bias");
  if (!bias.ok()) return bias.status();
  if (*bias && config.model_type() != "llama") return config.RequireNeutral("mlp_bias", false);
  // Fields of related families; a checkpoint that sets one computes something else.
  const std::pair<const char*, nlohmann::json> neutral[] = {
      {"hidden_activation", "silu"}, {"residual_multiplier", 1.0},    {"embedding_multiplier", 1.0},
      {"swiglu_limit", 0.0},         {"num_local_experts", 0},        {"num_experts", 0},
      {"auto_map", nullptr},         {"quantization_config", nullptr}};
  for (const auto& [field, value] : neutral) {
    absl::Status status = config.RequireNeutral(field, value);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

constexpr std::string_view kProjections[] = {"gate_proj", "up_proj", "down_proj"};

absl::Status CheckLayer(const PlanContext& context, int64_t layer) {
  const std::string prefix = absl::StrCat(context.base, "layers.", layer, ".");
  const auto bias = context.config.Flag("mlp_bias");
  if (!bias.ok()) return bias.status();
  for (const std::string& name : context.checkpoint.WithPrefix(prefix)) {
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (rest.substr(0, 10) == "self_attn.") continue;  // not ours to serve
    bool known = rest == "input_layernorm.weight" || rest == "post_attention_layernorm.weight";
    for (std::string_view projection : kProjections) {
      known |= rest == absl::StrCat("mlp.", std::string(projection), ".weight");
      known |= *bias && rest == absl::StrCat("mlp.", std::string(projection), ".bias");
    }
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat(
          context.checkpoint.FileOf(name), ": tensor '", Printable(name), "': a ",
          context.config.model_type(), " model with this config has no such tensor in a layer"));
    }
  }
  return absl::OkStatus();
}

absl::Status Take(const PlanContext& context, const std::string& name,
                  absl::Span<const int64_t> shape, std::optional<ConstTensorView>& role) {
  absl::StatusOr<ConstTensorView> view = context.checkpoint.Find(name, shape);
  if (!view.ok()) return view.status();
  role = *view;
  return absl::OkStatus();
}

absl::Status TakeNorm(const PlanContext& context, const std::string& name, BlockPlan& plan) {
  const auto eps = context.config.PositiveFloat("rms_norm_eps");
  if (!eps.ok()) return eps.status();
  plan.spec.norm.eps = *eps;
  plan.spec.norm.form =
      context.rounding == Rounding::kHf ? RmsNormForm::kNormalisedFirst : RmsNormForm::kOnce;
  return Take(context, name, {plan.spec.hidden}, plan.weights.norm);
}

absl::Status TakeMlp(const PlanContext& context, const std::string& prefix, BlockPlan& plan) {
  const int64_t h = plan.spec.hidden, i = plan.spec.intermediate;
  BlockWeights& w = plan.weights;
  struct Projection {
    const char* name;
    std::array<int64_t, 2> shape;
    std::optional<ConstTensorView>*weight, *bias;
  };
  const auto bias = context.config.Flag("mlp_bias");
  if (!bias.ok()) return bias.status();
  for (const Projection& p : {Projection{"gate_proj", {i, h}, &w.gate, &w.gate_bias},
                              Projection{"up_proj", {i, h}, &w.up, &w.up_bias},
                              Projection{"down_proj", {h, i}, &w.down, &w.down_bias}}) {
    absl::Status status =
        Take(context, absl::StrCat(prefix, "mlp.", p.name, ".weight"), p.shape, *p.weight);
    if (status.ok() && *bias) {
      status = Take(context, absl::StrCat(prefix, "mlp.", p.name, ".bias"), {p.shape[0]}, *p.bias);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<BlockPlan> Plan(const PlanContext& context, std::string_view part, int64_t layer) {
  const auto sizes = ReadSizes(context.config);
  if (!sizes.ok()) return sizes.status();
  const std::string prefix = absl::StrCat(context.base, "layers.", layer, ".");
  BlockPlan plan;
  plan.spec.dtype = context.dtype;
  plan.spec.rounding = context.rounding;
  plan.spec.hidden = sizes->hidden;
  absl::Status status;
  if (part == "embed") {
    plan.spec.kind = BlockKind::kEmbedding;
    plan.spec.vocabulary = sizes->vocabulary;
    status = Take(context, absl::StrCat(context.base, "embed_tokens.weight"),
                  {sizes->vocabulary, sizes->hidden}, plan.weights.table);
  } else if (part == "final_norm") {
    plan.spec.kind = BlockKind::kNormResidual;
    status = TakeNorm(context, absl::StrCat(context.base, "norm.weight"), plan);
  } else if (part == "attn_norm") {
    plan.spec.kind = BlockKind::kNormResidual;
    status = TakeNorm(context, absl::StrCat(prefix, "input_layernorm.weight"), plan);
  } else {  // ffn_norm, mlp, ffn_path: the norm, the feed-forward, or both
    plan.spec.kind = part == "mlp"        ? BlockKind::kMlp
                     : part == "ffn_norm" ? BlockKind::kNormResidual
                                          : BlockKind::kFfnPath;
    if (plan.spec.kind != BlockKind::kMlp) {
      status = TakeNorm(context, absl::StrCat(prefix, "post_attention_layernorm.weight"), plan);
    }
    if (status.ok() && plan.spec.kind != BlockKind::kNormResidual) {
      plan.spec.intermediate = sizes->intermediate;
      status = TakeMlp(context, prefix, plan);
    }
  }
  if (!status.ok()) return status;
  plan.formula = Block::Formula(plan.spec);
  if (plan.weights.gate_bias.has_value()) {
    absl::StrAppend(&plan.formula, "; gate, up and down each add their bias");
  }
  return plan;
}

}  // namespace

extern const Family kLlamaFamily = {CheckConfig,
                                    "num_hidden_layers",
                                    kLayerParts,
                                    kModelParts,
                                    "layers.0.post_attention_layernorm.weight",
                                    CheckLayer,
                                    Plan};

}  // namespace fuseblock
