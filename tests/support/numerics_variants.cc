#include "tests/support/numerics_variants.h"

#include "absl/strings/str_cat.h"
#include "hwy/highway.h"

namespace fuseblock::testing {
namespace {

void UseTargets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);  // 0: what the machine has
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<Variant> Variants(const std::vector<ImplementationInfo>& list) {
  std::vector<Variant> variants;
  for (const ImplementationInfo& item : list) {
    if (!item.unavailable.empty()) continue;
    if (std::string(item.name) != "highway") {
      variants.push_back({item.name, item.device, 0, item.name});
      continue;
    }
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      variants.push_back(
          {item.name, item.device, target, absl::StrCat(item.name, " ", hwy::TargetName(target))});
    }
  }
  return variants;
}

ScopedVariant::ScopedVariant(const Variant& variant) { UseTargets(variant.simd_target); }
ScopedVariant::~ScopedVariant() { UseTargets(0); }

}  // namespace fuseblock::testing
