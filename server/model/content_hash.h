// The hash that names a block's content: its spec and its weights' bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "kernels/block/block.h"

namespace fuseblock {

// Calls visit(role, view) for each weight that is set, always in the same order.
template <typename Visit>
void ForEachWeight(const BlockWeights& weights, Visit&& visit) {
  static constexpr struct {
    const char* role;
    std::optional<ConstTensorView> BlockWeights::*weight;
  } kRoles[] = {
      {"norm", &BlockWeights::norm},
      {"gate", &BlockWeights::gate},
      {"up", &BlockWeights::up},
      {"down", &BlockWeights::down},
      {"gate_bias", &BlockWeights::gate_bias},
      {"up_bias", &BlockWeights::up_bias},
      {"down_bias", &BlockWeights::down_bias},
      {"table", &BlockWeights::table},
  };
  for (const auto& item : kRoles) {
    if ((weights.*item.weight).has_value()) visit(item.role, *(weights.*item.weight));
  }
}

// Hashes blocks whose weights may be the same memory, reading each weight once. Not thread-safe.
class ContentHasher {
 public:
  explicit ContentHasher(const ParallelFor& parallel_for) : parallel_for_(parallel_for) {}

  // SHA-256 in hexadecimal of the spec and of each weight's role, dtype, shape and bytes. Depends
  // on no device and no thread count. The weights' memory must not change while the hasher lives.
  std::string Hash(const BlockSpec& spec, const BlockWeights& weights);

 private:
  using Digest = std::array<std::byte, 32>;
  const Digest& DigestOf(const ConstTensorView& view);

  ParallelFor parallel_for_;
  std::map<std::pair<const void*, size_t>, Digest> digests_;
};

}  // namespace fuseblock
