// A checkpoint's config.json, asked field by field. Every error names the file, the field, what was
// expected and what came.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "nlohmann/json.hpp"

namespace fuseblock {

class ModelConfig {
 public:
  // file: for messages.
  static absl::StatusOr<ModelConfig> Parse(std::string_view text, std::string file);

  const std::string& model_type() const { return model_type_; }

  // INVALID_ARGUMENT when the field is absent or no integer in [1, max].
  absl::StatusOr<int64_t> Size(const char* field, int64_t max) const;
  // INVALID_ARGUMENT when the field is absent or, as FP32, not positive and finite.
  absl::StatusOr<float> PositiveFloat(const char* field) const;
  // INVALID_ARGUMENT when the field is absent or no string.
  absl::StatusOr<std::string> String(const char* field) const;
  // Absent or null is false. INVALID_ARGUMENT when it is no boolean.
  absl::StatusOr<bool> Flag(const char* field) const;
  // The dtype that the weights were saved in (`dtype`, or `torch_dtype` before transformers 5);
  // nullopt when the file does not say. UNIMPLEMENTED for one that is not FP32, FP16 or BF16.
  absl::StatusOr<std::optional<DType>> SavedDType() const;

  // OK when the field is absent, null or `neutral`, the value with which it changes nothing.
  // UNIMPLEMENTED, naming field and value, otherwise.
  absl::Status RequireNeutral(const char* field, const nlohmann::json& neutral) const;

  // "config.json: field: expected ..., got ...".
  absl::Status Expected(const char* field, std::string_view expected) const;
  absl::Status Unsupported(const char* field, std::string_view why) const;

 private:
  ModelConfig() = default;
  // The field's value, null when it is absent.
  const nlohmann::json& At(const char* field) const;

  nlohmann::json document_;
  std::string file_, model_type_;
};

}  // namespace fuseblock
