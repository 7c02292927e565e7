// From a checkpoint's folder to blocks in the registry.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/model/registry.h"

namespace fuseblock {

struct ModelOptions {
  std::string name;            // "smollm2": the blocks' prefix; [A-Za-z0-9_-]+
  std::string path;            // the folder with config.json and the safetensors
  std::optional<DType> dtype;  // compute dtype; unset: the checkpoint's
  Rounding rounding = Rounding::kFused;
  std::string layers;              // "0-3,29"; empty: all
  std::vector<std::string> parts;  // "mlp", "ffn_path", ...; empty: all
  int64_t revision = 1;
  // By unit (below): the devices that get its blocks, in order; one that is not named goes to all.
  std::map<std::string, std::vector<Device>> places;
  bool copies = true;  // whether there is room for Block::CopyBytes
};

// Blocks that share weights, and so lie on the same devices: a layer's, or one of the model's own.
struct ModelUnit {
  std::string name;               // "smollm2.layers.3", "smollm2.final_norm"
  std::vector<BlockSpec> blocks;  // what they compute
  int64_t weight_bytes = 0;       // on one device
};

// What the model's blocks come to, before anything is allocated. Errors as LoadModel.
absl::StatusOr<std::vector<ModelUnit>> MeasureModel(const ModelOptions& options);

using PrepareBlock = std::function<absl::Status(const ServedBlock& block, int blocks)>;

// Loads the model's blocks onto their devices (the preferred one first), one block at a time, each
// handed to `prepare`, with how many there are in all, before it can be asked for (the engine sizes
// its lanes there), and publishes them all together: no client meets a half-loaded revision. Every
// tensor's name, shape and dtype is checked before anything is allocated; blocks that compute with
// the same weights hold them once. On an error nothing of this call is published, its blocks are
// failed with the error (those that an older revision answers stay ready), and what was serving
// goes on. `layers` narrows the layers' parts; `final_norm` and `embed` are parts like any other.
// Errors name the file, the tensor or field, expected and given: INVALID_ARGUMENT (options, config,
// damaged file), NOT_FOUND (file or tensor), UNIMPLEMENTED (a family, activation or option that is
// not served), ALREADY_EXISTS (the revision), RESOURCE_EXHAUSTED (a device has no room).
absl::Status LoadModel(const ModelOptions& options, const std::vector<Device>& devices,
                       BlockRegistry& registry, const PrepareBlock& prepare,
                       const ParallelFor& parallel_for = {});

}  // namespace fuseblock
