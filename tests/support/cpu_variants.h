// Every way in which a kernel's list can compute on this machine's CPU: each usable implementation,
// and "highway" once for each instruction set that it was compiled for.
#pragma once

#include <string>
#include <vector>

#include "hwy/targets.h"
#include "kernels/base/implementation.h"

namespace fuseblock::testing {

template <typename Args>
struct CpuVariant {
  const Implementation<Args>* implementation;
  std::string name;  // "highway/AVX2", "reference"
  int64_t target;    // Highway's; 0 for an implementation without
  // Whether a step is one fused multiply-add, and a vector holds more than one value.
  bool fused = true;
  bool fast = true;
};

// For a scope, Highway dispatches to that target; 0 leaves the choice as it is.
class ScopedTarget {
 public:
  explicit ScopedTarget(int64_t target) : target_(target) {
    if (target_ != 0) hwy::SetSupportedTargetsForTest(target_);
  }
  ~ScopedTarget() {
    if (target_ != 0) hwy::SetSupportedTargetsForTest(0);
  }
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;

 private:
  int64_t target_;
};

template <typename Args>
std::vector<CpuVariant<Args>> CpuVariants(absl::Span<const Implementation<Args>> list) {
  std::vector<CpuVariant<Args>> variants;
  for (const Implementation<Args>& item : list) {
    if (item.device != DeviceType::kCpu || !item.unavailable(nullptr).empty()) continue;
    if (std::string(item.name) != "highway") {
      variants.push_back({&item, item.name, 0});
      continue;
    }
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      const bool fused = target <= HWY_AVX2;  // lower is better; SSE has no fused multiply-add
      variants.push_back({&item, std::string("highway/") + hwy::TargetName(target), target, fused,
                          target <= HWY_SSE4});
    }
  }
  return variants;
}

}  // namespace fuseblock::testing
