#include "server/model/model_config.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/model/json.h"

namespace fuseblock {
namespace {

const nlohmann::json kNull;

std::string Text(const nlohmann::json& value) {
  if (value.is_null()) return "nothing";
  using nlohmann::json;
  return Printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::Parse(std::string_view text, std::string file) {
  absl::StatusOr<nlohmann::json> document = ParseJson(text);
  if (!document.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", document.status().message()));
  }
  if (!document->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": expected a JSON object"));
  }
  ModelConfig config;
  config.document_ = *std::move(document);
  config.file_ = std::move(file);
  absl::StatusOr<std::string> model_type = config.String("model_type");
  if (!model_type.ok()) return model_type.status();
  config.model_type_ = *std::move(model_type);
  return config;
}

const nlohmann::json& ModelConfig::At(const char* field) const {
  const auto it = document_.find(field);
  return it == document_.end() ? kNull : *it;
}

absl::Status ModelConfig::Expected(const char* field, std::string_view expected) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", field, ": expected ",
                                                 std::string(expected), ", got ", Text(At(field))));
}

absl::Status ModelConfig::Unsupported(const char* field, std::string_view why) const {
  return absl::UnimplementedError(
      absl::StrCat(file_, ": ", field, " ", Text(At(field)), " is not served: ", std::string(why)));
}

absl::StatusOr<int64_t> ModelConfig::Size(const char* field, int64_t max) const {
  const nlohmann::json& value = At(field);
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number >= 1 && number <= static_cast<uint64_t>(max)) return static_cast<int64_t>(number);
  }
  return Expected(field, absl::StrCat("an integer from 1 to ", max));
}

absl::StatusOr<float> ModelConfig::PositiveFloat(const char* field) const {
  const nlohmann::json& value = At(field);
  if (value.is_number()) {
    const float number = static_cast<float>(value.get<double>());
    if (number > 0 && std::isfinite(number)) return number;
  }
  return Expected(field, "a positive number");
}

absl::StatusOr<std::string> ModelConfig::String(const char* field) const {
  const nlohmann::json& value = At(field);
  if (!value.is_string()) return Expected(field, "a string");
  return value.get<std::string>();
}

absl::StatusOr<bool> ModelConfig::Flag(const char* field) const {
  const nlohmann::json& value = At(field);
  if (value.is_null()) return false;
  if (!value.is_boolean()) return Expected(field, "true or false");
  return value.get<bool>();
}

absl::StatusOr<std::optional<DType>> ModelConfig::SavedDType() const {
  const char* field = At("dtype").is_null() ? "torch_dtype" : "dtype";
  if (At(field).is_null()) return std::nullopt;
  static constexpr std::pair<const char*, DType> kNames[] = {
      {"float32", DType::kF32}, {"float16", DType::kF16}, {"bfloat16", DType::kBF16}};
  for (const auto& [name, dtype] : kNames) {
    if (At(field) == name) return dtype;
  }
  return Unsupported(field, "expected float32, float16 or bfloat16, or a dtype set for the model");
}

absl::Status ModelConfig::RequireNeutral(const char* field, const nlohmann::json& neutral) const {
  const nlohmann::json& value = At(field);
  if (value.is_null() || value == neutral) return absl::OkStatus();
  return Unsupported(field, absl::StrCat("it changes the arithmetic of a ", Printable(model_type_),
                                         " model in a way that this family does not define"));
}

}  // namespace fuseblock
