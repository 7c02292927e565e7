#include "server/model/loader.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/align.h"
#include "server/model/checkpoint.h"
#include "server/model/content_hash.h"
#include "server/model/family.h"
#include "server/model/json.h"
#include "server/model/layer_list.h"
#include "server/model/model_config.h"

namespace fuseblock {
namespace {

// One block to be loaded.
struct Target {
  std::string name;       // "smollm2.layers.0.mlp"
  std::string_view part;  // "mlp"
  int64_t layer;          // -1: of the model
};

absl::Status CheckOptions(const ModelOptions& options, const std::vector<Device>& devices) {
  const bool plain = std::all_of(options.name.begin(), options.name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
  if (options.name.empty() || !plain) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model name: expected letters, digits, '_' and '-', got '", Printable(options.name), "'"));
  }
  if (options.revision < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("revision: expected a positive integer, got ", options.revision));
  }
  if (devices.empty()) return absl::InvalidArgumentError("devices: expected at least one");
  return absl::OkStatus();
}

// Whether the options ask for that part.
bool Wanted(const ModelOptions& options, std::string_view part) {
  return options.parts.empty() ||
         std::find(options.parts.begin(), options.parts.end(), part) != options.parts.end();
}

absl::Status CheckParts(const ModelOptions& options, const Family& family) {
  std::vector<std::string> known(family.layer_parts.begin(), family.layer_parts.end());
  known.insert(known.end(), family.model_parts.begin(), family.model_parts.end());
  for (auto it = options.parts.begin(); it != options.parts.end(); ++it) {
    if (std::find(known.begin(), known.end(), *it) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parts: expected some of ", absl::StrJoin(known, ", "), ", got '", Printable(*it), "'"));
    }
    if (std::find(options.parts.begin(), it, *it) != it) {
      return absl::InvalidArgumentError(absl::StrCat("parts: '", *it, "' is named twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Target>> Targets(const ModelOptions& options, const Family& family,
                                            const ModelConfig& config) {
  absl::Status status = CheckParts(options, family);
  if (!status.ok()) return status;
  const auto count = config.Size(family.layers_field, INT64_MAX);
  if (!count.ok()) return count.status();
  const auto layers = ParseLayers(options.layers, *count);
  if (!layers.ok()) return layers.status();
  std::vector<Target> targets;
  for (std::string_view part : family.model_parts) {
    if (!Wanted(options, part)) continue;
    targets.push_back({absl::StrCat(options.name, ".", std::string(part)), part, -1});
  }
  for (int64_t layer : *layers) {
    for (std::string_view part : family.layer_parts) {
      if (!Wanted(options, part)) continue;
      targets.push_back(
          {absl::StrCat(options.name, ".layers.", layer, ".", std::string(part)), part, layer});
    }
  }
  return targets;
}

// Every block's plan, so that every name, shape and dtype is known to fit before anything is built.
absl::StatusOr<std::vector<BlockPlan>> PlanAll(const PlanContext& context, const Family& family,
                                               const std::vector<Target>& targets) {
  std::vector<BlockPlan> plans;
  int64_t checked = -1;
  for (const Target& target : targets) {
    if (target.layer != checked && target.layer >= 0) {
      absl::Status status = family.check_layer(context, target.layer);
      if (!status.ok()) return status;
      checked = target.layer;
    }
    absl::StatusOr<BlockPlan> plan = family.plan(context, target.part, target.layer);
    if (!plan.ok()) return plan.status();
    plans.push_back(*std::move(plan));
  }
  return plans;
}

// The options', else the config's, else that of the first weight.
absl::StatusOr<DType> ComputeDType(const ModelOptions& options, const PlanContext& context,
                                   const Family& family, const Target& first) {
  if (options.dtype.has_value()) return *options.dtype;
  const auto saved = context.config.SavedDType();
  if (!saved.ok()) return saved.status();
  if (saved->has_value()) return **saved;
  const absl::StatusOr<BlockPlan> plan = family.plan(context, first.part, first.layer);
  if (!plan.ok()) return plan.status();
  std::optional<DType> dtype;
  ForEachWeight(plan->weights, [&](const char*, const ConstTensorView& view) {
    if (!dtype.has_value()) dtype = view.dtype;
  });
  return dtype.value_or(DType::kF32);
}

absl::StatusOr<std::shared_ptr<const ServedBlock>> Build(
    const Target& target, const BlockPlan& plan, const ModelOptions& options,
    const ModelConfig& config, const std::vector<Device>& devices, ContentHasher& hasher,
    BlockWeightCache& cache, const ParallelFor& parallel_for) {
  auto served = std::make_shared<ServedBlock>();
  served->name = target.name;
  served->revision = options.revision;
  served->family = config.model_type();
  served->content_hash = hasher.Hash(plan.spec, plan.weights);
  served->formula = plan.formula;
  served->spec = plan.spec;
  served->inputs = Block::Inputs(plan.spec);
  served->outputs = Block::Outputs(plan.spec);
  for (Device device : devices) {
    absl::StatusOr<std::unique_ptr<const Block>> block =
        Block::Create(plan.spec, plan.weights, device, parallel_for, &cache);
    if (!block.ok()) {
      return absl::Status(
          block.status().code(),
          absl::StrCat(target.name, " on ", DeviceName(device), ": ", block.status().message()));
    }
    served->blocks.push_back(*std::move(block));
  }
  return served;
}

// A model whose options fit its config.
struct Described {
  ModelConfig config;
  const Family* family;
  std::vector<Target> targets;
};

absl::StatusOr<Described> DescribeModel(const ModelOptions& options) {
  const std::string config_path = absl::StrCat(options.path, "/config.json");
  const absl::StatusOr<std::string> text = ReadTextFile(config_path);
  if (!text.ok()) return text.status();
  absl::StatusOr<ModelConfig> config = ModelConfig::Parse(*text, config_path);
  if (!config.ok()) return config.status();
  const absl::StatusOr<const Family*> family = FindFamily(config->model_type());
  if (!family.ok()) {
    return absl::Status(family.status().code(),
                        absl::StrCat(config_path, ": ", family.status().message()));
  }
  absl::Status status = (*family)->check_config(*config);
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<Target>> targets = Targets(options, **family, *config);
  if (!targets.ok()) return targets.status();
  return Described{*std::move(config), *family, *std::move(targets)};
}

// And whose checkpoint fits them. The plans' weights lie in it.
struct Planned {
  Checkpoint checkpoint;
  std::vector<BlockPlan> plans;  // by target
};

absl::StatusOr<Planned> PlanModel(const ModelOptions& options, const Described& model) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(options.path);
  if (!checkpoint.ok()) return checkpoint.status();
  const absl::StatusOr<std::string> base = checkpoint->BasePrefix(model.family->anchor);
  if (!base.ok()) return base.status();
  PlanContext context{model.config, *checkpoint, *base, DType::kF32, options.rounding};
  const auto dtype = ComputeDType(options, context, *model.family, model.targets.front());
  if (!dtype.ok()) return dtype.status();
  context.dtype = *dtype;
  absl::StatusOr<std::vector<BlockPlan>> plans = PlanAll(context, *model.family, model.targets);
  if (!plans.ok()) return plans.status();
  return Planned{*std::move(checkpoint), *std::move(plans)};
}

std::string UnitName(const ModelOptions& options, const Target& target) {
  return target.layer < 0 ? target.name : absl::StrCat(options.name, ".layers.", target.layer);
}

// The devices of the target's unit: of all, those that the options say.
std::vector<Device> PlacesOf(const ModelOptions& options, const Target& target,
                             const std::vector<Device>& devices) {
  const auto place = options.places.find(UnitName(options, target));
  return place == options.places.end() ? devices : place->second;
}

absl::Status LoadTargets(const Described& model, const ModelOptions& options,
                         const std::vector<Device>& devices, BlockRegistry& registry,
                         const PrepareBlock& prepare, const ParallelFor& parallel_for) {
  const absl::StatusOr<Planned> planned = PlanModel(options, model);
  if (!planned.ok()) return planned.status();
  const std::vector<Target>& targets = model.targets;

  ContentHasher hasher(parallel_for);
  BlockWeightCache cache(options.copies);
  std::vector<std::shared_ptr<const ServedBlock>> loaded;
  for (size_t i = 0; i < targets.size(); ++i) {
    auto served = Build(targets[i], planned->plans[i], options, model.config,
                        PlacesOf(options, targets[i], devices), hasher, cache, parallel_for);
    if (!served.ok()) return served.status();
    if (prepare) {
      absl::Status status = prepare(**served, static_cast<int>(targets.size()));
      if (!status.ok()) return status;
    }
    loaded.push_back(*std::move(served));
    // The layer's last block: its pages of the mapping are not needed again.
    if (i + 1 < targets.size() && targets[i + 1].layer == targets[i].layer) continue;
    for (size_t j = i + 1; j-- > 0 && targets[j].layer == targets[i].layer;) {
      ForEachWeight(planned->plans[j].weights, [&](const char*, const ConstTensorView& view) {
        planned->checkpoint.Release(view);
      });
    }
  }
  return registry.PublishAll(loaded);
}

// Of one device, for these blocks; matrices that they share are held once.
int64_t WeightBytes(const std::vector<const BlockPlan*>& plans) {
  std::set<const void*> counted;
  int64_t bytes = 0;
  for (const BlockPlan* plan : plans) {
    ForEachWeight(plan->weights, [&](const char*, const ConstTensorView& view) {
      if (view.dims().size() > 1 && !counted.insert(view.data).second) return;
      bytes += AlignTensor(view.elements() * SizeOf(plan->spec.dtype));
    });
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<ModelUnit>> MeasureModel(const ModelOptions& options) {
  const absl::StatusOr<Described> model = DescribeModel(options);
  if (!model.ok()) return model.status();
  const absl::StatusOr<Planned> planned = PlanModel(options, *model);
  if (!planned.ok()) return planned.status();
  std::vector<ModelUnit> units;
  std::vector<const BlockPlan*> plans;  // of the newest unit
  for (size_t i = 0; i < model->targets.size(); ++i) {
    const std::string name = UnitName(options, model->targets[i]);
    if (units.empty() || units.back().name != name) {
      units.push_back({name, {}, 0});
      plans.clear();
    }
    plans.push_back(&planned->plans[i]);
    units.back().blocks.push_back(planned->plans[i].spec);
    units.back().weight_bytes = WeightBytes(plans);
  }
  return units;
}

absl::Status LoadModel(const ModelOptions& options, const std::vector<Device>& devices,
                       BlockRegistry& registry, const PrepareBlock& prepare,
                       const ParallelFor& parallel_for) {
  absl::Status status = CheckOptions(options, devices);
  if (!status.ok()) return status;
  const absl::StatusOr<Described> model = DescribeModel(options);
  if (!model.ok()) return model.status();
  for (const Target& target : model->targets) {
    if (registry.Find(target.name, absl::StrCat(options.revision)).ok()) {
      return absl::AlreadyExistsError(
          absl::StrCat("block '", target.name, "' has revision ", options.revision, " already"));
    }
  }
  for (const Target& target : model->targets) registry.Declare(target.name);
  status = LoadTargets(*model, options, devices, registry, prepare, parallel_for);
  if (!status.ok()) {
    for (const Target& target : model->targets) {
      registry.Fail(target.name, std::string(status.message()));
    }
  }
  return status;
}

}  // namespace fuseblock
