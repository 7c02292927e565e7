// Model families: what a checkpoint of each model_type holds and how its blocks compute.
//
// To add one: write a small file like llama.cc that defines a Family, and name it in the table of
// family.cc. A family refuses, by name, every config field that it does not understand to be
// without effect: nothing is guessed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/block/block.h"
#include "server/model/checkpoint.h"
#include "server/model/model_config.h"

namespace fuseblock {

// A block's arithmetic and weights, checked against the checkpoint and not yet on any device.
struct BlockPlan {
  BlockSpec spec;
  BlockWeights weights;  // views into the checkpoint
  std::string formula;   // for people
};

// What a block is asked to be.
struct PlanContext {
  const ModelConfig& config;
  const Checkpoint& checkpoint;
  std::string base;  // what stands before "layers.0" in the checkpoint: "model."
  DType dtype;
  Rounding rounding;
};

struct Family {
  // UNIMPLEMENTED or INVALID_ARGUMENT naming the field when the config's arithmetic is not this
  // family's.
  absl::Status (*check_config)(const ModelConfig& config);
  const char* layers_field;                        // the config's number of layers
  absl::Span<const std::string_view> layer_parts;  // of each layer: "mlp"
  absl::Span<const std::string_view> model_parts;  // of the model: "final_norm"
  const char* anchor;  // a tensor that every layer has, for the base prefix: "layers.0.x.weight"
  // Every tensor of the layer that changes what its blocks compute is known. INVALID_ARGUMENT
  // naming the first that is not.
  absl::Status (*check_layer)(const PlanContext& context, int64_t layer);
  // layer: -1 for a model part. part: one of the lists above.
  absl::StatusOr<BlockPlan> (*plan)(const PlanContext& context, std::string_view part,
                                    int64_t layer);
};

// The family of that config.json model_type. UNIMPLEMENTED, with the types that are served, for any
// other.
absl::StatusOr<const Family*> FindFamily(std::string_view model_type);

extern const Family kLlamaFamily;  // llama.cc

}  // namespace fuseblock
