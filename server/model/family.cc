// The table of model families.
#include "server/model/family.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/model/json.h"

namespace fuseblock {
namespace {

struct FamilyName {
  std::string_view model_type;
  const Family* family;
};

constexpr FamilyName kFamilies[] = {
    {"llama", &kLlamaFamily},
    {"mistral", &kLlamaFamily},
    {"qwen2", &kLlamaFamily},
    {"qwen3", &kLlamaFamily},
};

}  // namespace

absl::StatusOr<const Family*> FindFamily(std::string_view model_type) {
  for (const FamilyName& entry : kFamilies) {
    if (entry.model_type == model_type) return entry.family;
  }
  const std::string served = absl::StrJoin(
      kFamilies, ", ",
      [](std::string* out, const FamilyName& entry) { out->append(entry.model_type); });
  return absl::UnimplementedError(
      absl::StrCat("model_type '", Printable(model_type), "' is not served; served are: ", served));
}

}  // namespace fuseblock
