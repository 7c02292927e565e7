// The functions between the products of a feed-forward network.
#pragma once

#include <cstdint>
#include <string_view>

namespace fuseblock {

// The two forms of GELU (gelu.h) are never substituted for one another.
enum class Activation : uint8_t { kSilu, kGeluTanh, kGeluErf };

constexpr std::string_view Name(Activation activation) {
  constexpr std::string_view kNames[] = {"silu", "gelu_tanh", "gelu_erf"};
  return kNames[static_cast<uint8_t>(activation)];
}

}  // namespace fuseblock
