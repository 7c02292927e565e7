// From a checkpoint's folder to blocks in the registry.
#pragma once

#include <functional>
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
};

// Loads the model's blocks onto every device (the preferred one first), one block at a time, and
// publishes each when `prepare` has accepted it (the engine sizes its lanes there). Every tensor's
// name, shape and dtype is checked before anything is allocated. On an error the blocks of this call
// are failed with it, and what was serving goes on.
// Errors name the file, the tensor, expected and given: INVALID_ARGUMENT (config, damaged file),
// NOT_FOUND (file or tensor), UNIMPLEMENTED (a family, activation or option that is not served).
absl::Status LoadModel(const ModelOptions& options, const std::vector<Device>& devices,
                       BlockRegistry& registry,
                       const std::function<absl::Status(const ServedBlock&)>& prepare,
                       const ParallelFor& parallel_for = {});

}  // namespace fuseblock
