// Every way in which this machine can run a kernel: each usable implementation of its list, the
// vector one once for each instruction set that it was built for and the machine has, down to none.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/implementation.h"

namespace fuseblock::testing {

struct Variant {
  std::string implementation;
  DeviceType device;
  int64_t simd_target;  // a Highway target, or 0
  std::string label;    // "highway AVX2", "cuda", "reference"
};

std::vector<Variant> Variants(const std::vector<ImplementationInfo>& list);

// Makes the vector implementations use the variant's target until it ends.
class ScopedVariant {
 public:
  explicit ScopedVariant(const Variant& variant);
  ~ScopedVariant();
  ScopedVariant(const ScopedVariant&) = delete;
  ScopedVariant& operator=(const ScopedVariant&) = delete;
};

// Runs the implementation of that name. UNIMPLEMENTED when the list has none or it objects.
template <typename Args>
absl::Status RunNamed(absl::Span<const Implementation<Args>> list, const std::string& name,
                      const ExecutionContext& context, const Args& args) {
  for (const Implementation<Args>& item : list) {
    if (item.name != name) continue;
    const std::string reason = item.why_not(args);
    if (!reason.empty()) return absl::UnimplementedError(reason);
    return item.run(context, args);
  }
  return absl::UnimplementedError(name);
}

}  // namespace fuseblock::testing
